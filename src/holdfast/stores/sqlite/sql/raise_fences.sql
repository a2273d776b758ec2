-- Contract: raises the fence of the file above every earlier one, by as many steps as grants are made together (`:more`
-- is one less), and returns the last.
UPDATE holdfast_fence SET value = max(value + 1, :fence_floor) + :more RETURNING value
