"""What vision-language hosts are asked, word for word.

MATERIAL, DESCRIPTION and RETRIEVAL are the paper's prompts, C.3, C.4 and C.2. Of C.5's prompt our
copy of the paper has the opening (FUNCTION_OPENING); the two questions and the answer's form are
ours, since the paper's are missing ("two structured questions").
"""

from __future__ import annotations

from trace_jax import taxonomy

# Paper C.3. The answer is a comma-separated list.
MATERIAL = (
    "What were the main materials of this object before degradation? Reply with a "
    "comma-separated list of single-word materials only (for example: wood, steel, plastic). "
    "Do not describe the damage."
)
# Paper C.4. The answer is one sentence.
DESCRIPTION = (
    "Describe what this object most likely was before it was damaged. Mention its object type, "
    "main material(s), and intended use. Do not focus on the damage. Answer in one concise "
    "sentence."
)
# Paper C.5, opening.
FUNCTION_OPENING = (
    "You are looking at an object that has been damaged in a fire. Reason about what the object "
    "originally was and answer two questions about its pre-damage identity and restoration "
    "potential."
)
# Paper C.2: defines the intent; scoring is in feature space, no host is asked it.
RETRIEVAL = (
    "Find the pristine object image in the gallery that corresponds to this physically degraded "
    "object."
)
# Paper C.5: at most 150 output tokens. The other prompts' answers are shorter; C.3 and C.4 say
# no number, so theirs are ours.
MAX_NEW_TOKENS = {"material": 64, "description": 96, "function": 150, "damage": 32}

FUNCTION_LABEL, MATERIALS_LABEL = "Function:", "Materials:"


def function_prompt() -> str:
    """The functional-reasoning prompt: the paper's opening, our questions and form of answer."""
    tags = ", ".join(taxonomy.load().functions)
    return (
        f"{FUNCTION_OPENING}\n"
        "1. What was the object's function? Name one or two of these tags: "
        f"{tags}.\n"
        "2. Which materials are needed to restore it? Name single-word materials.\n"
        "Answer in exactly two lines:\n"
        f"{FUNCTION_LABEL} tags, separated by commas\n"
        f"{MATERIALS_LABEL} materials, separated by commas"
    )


def prompts() -> dict[str, str]:
    """Prompt of each generation task by the task's name."""
    return {"material": MATERIAL, "description": DESCRIPTION, "function": function_prompt()}
