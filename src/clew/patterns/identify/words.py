"""Numbers and counts as the page, the contact sheets and the terminal tell them."""


def percent_text(probability: float) -> str:
    """Whole percent; what is not quite certain is never told as 100%, nor as 0%."""
    if 0.995 <= probability < 1:
        return f"{min(probability, 0.999):.1%}"
    return "<1%" if 0 < probability < 0.005 else f"{probability:.0%}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
