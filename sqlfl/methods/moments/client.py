"""The client's part of the solution by noised moments: an operator of its own."""

from __future__ import annotations

from sqlfl.methods.moments.configuration import MomentsConfiguration
from sqlfl.methods.moments.operator import MomentsOperator
from sqlfl.party.operator import ClientPart

CLIENT = ClientPart(MomentsConfiguration, linear=MomentsOperator)
