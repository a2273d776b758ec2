-- note: remember a fence that guards nothing in this server: the door of an endpoint, the messages of a channel.
--
-- KEYS  1 the fence
-- ARGV  as in judge.lua
-- Reply {'ok'}, or a refusal
-- Needs: GET SET.
return refusal() or register() or { 'ok' }
