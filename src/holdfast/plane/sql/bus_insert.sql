-- Contract: puts a message into the queue of one group; a message of that id that is there, or was lately, stays as it is.
INSERT INTO plane_message
    (id, recipient, subject, body, message_key, fence_key, fence, priority, not_before_ns, first_ns, place,
     state, due_ns, deliveries, failures, excused)
VALUES
    (:id, :recipient, :subject, :body, :message_key, :fence_key, :fence, :priority, :not_before_ns, :first_ns, :place,
     :state, :not_before_ns, 0, 0, 0)
ON CONFLICT (id, recipient) DO NOTHING
