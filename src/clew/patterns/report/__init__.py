"""report.html of a training or an evaluation; nothing is fitted here."""
