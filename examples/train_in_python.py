"""GRPO from Python with a reward of your own: python examples/train_in_python.py [MODEL]"""

import sys

import covey


def says_hello(prompt, completion):
    return float("hello" in completion.text.lower()) - 0.01 * len(completion.token_ids)


run = covey.train_grpo(
    model=sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m",
    dataset=[{"prompt": f"Greet {name}."} for name in ("Ada", "Alan", "Grace", "Edsger")],
    rewards=[says_hello],
    num_generations=4,
    max_completion_length=16,
    max_steps=3,
    learning_rate=1e-5,
)
print(f"{run.steps} steps; the model is in {run.model_dir}")
