-- Contract: raises the fence of the file above every earlier one without granting anything, and returns it.
UPDATE holdfast_fence SET value = max(value + 1, :fence_floor) RETURNING value
