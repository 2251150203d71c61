from twostep.node.answers import Answers


def test_the_first_answer_stands() -> None:
    answers: Answers[str, int] = Answers(4)
    answers.record("leg", 1)
    answers.record("leg", 2)
    assert answers.find("leg") == 1


def test_the_oldest_answer_is_forgotten_first() -> None:
    answers: Answers[str, int] = Answers(2)
    for number, key in enumerate("abc"):
        answers.record(key, number)
    assert [answers.find(key) for key in "abc"] == [None, 1, 2]
    assert len(answers) == 2
