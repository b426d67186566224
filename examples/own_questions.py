"""Ask your own questions and see which answers are hallucinated.

Usage: python examples/own_questions.py smollm2 traces_questions
"""

import sys

import clew

model, out = sys.argv[1:] or ("smollm2", "traces_questions")
questions = [
    {"question": "What is the capital of Australia?", "answers": ["Canberra"]},
    {"question": "Who wrote Pride and Prejudice?", "answers": ["Jane Austen", "Austen"]},
    {"question": "What is the chemical symbol for gold?", "answers": ["Au"]},
    {"question": "Which planet is closest to the Sun?", "answers": ["Mercury"]},
]
traces = clew.extract(model=model, questions=questions, out=out)
scores = clew.label(out, out=f"{out}.csv").to_pandas().set_index("question_id")["score"]

for trace in traces:
    verdict = "correct" if scores[trace["question_id"]] >= 0.5 else "hallucinated"
    print(f"{trace['question']} {trace['answer']} ({verdict})")
