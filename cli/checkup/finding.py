"""What a checkup has found out about one thing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; empty when all is well."""

    subject: str
    says: str
    advice: str = ""

    @property
    def is_well(self) -> bool:
        return not self.advice
