"""The client's part of Frank-Wolfe: an operator of its own, for linear blocks alone."""

from __future__ import annotations

from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.operator import FrankWolfeOperator
from sqlfl.party.operator import ClientPart

CLIENT = ClientPart(FrankWolfeConfiguration, linear=FrankWolfeOperator)
