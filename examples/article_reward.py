"""The Countdown reward of the source article, typed as it is printed there, for ``covey check-reward``.

Do not train on it. The article leaves out ``extract_equation``, ``extract_numbers`` and ``safe_eval``; here they are
what such helpers usually are: the text between the tags, all runs of digits, and an ``eval`` without builtins.
"""

import re


def extract_equation(comp):
    return re.search(r"<answer>(.*?)</answer>", comp).group(1)


def extract_numbers(equation):
    return [int(n) for n in re.findall(r"\d+", equation)]


def safe_eval(equation):
    return eval(equation, {"__builtins__": None}, {})


class CountdownReward:
    def __call__(self, completions, targets, nums):
        rewards = []
        for comp, target, num_list in zip(completions, targets, nums):
            try:
                # format check
                if not re.search(r"<answer>(.*?)</answer>", comp):
                    rewards.append(0.4)  # format points only
                    continue

                # mathematical check
                equation = extract_equation(comp)
                used_nums = extract_numbers(equation)
                if sorted(used_nums) != sorted(num_list):
                    rewards.append(0.4)
                    continue

                result = safe_eval(equation)
                rewards.append(1.0 if abs(result - target) < 1e-5 else 0.4)
            except:
                rewards.append(0.0)
        return rewards


def article(completions, target, nums, **columns):
    """The class above, with the column of the data that it calls ``targets``."""
    return CountdownReward()(completions, target, nums)
