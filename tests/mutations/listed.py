"""All mistakes."""

from mutations.mutation import Mutation
from mutations.of_dispatch import DISPATCH
from mutations.of_engine import ENGINE
from mutations.of_outside import OUTSIDE
from mutations.of_storage import STORAGE

MUTATIONS: tuple[Mutation, ...] = (*STORAGE, *DISPATCH, *ENGINE, *OUTSIDE)
