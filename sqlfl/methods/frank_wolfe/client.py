"""The client's part of Frank-Wolfe, an operator for linear blocks only."""

from __future__ import annotations

from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.operator import FrankWolfeOperator
from sqlfl.party.operator import ClientPart

CLIENT = ClientPart(FrankWolfeConfiguration, linear=FrankWolfeOperator)
