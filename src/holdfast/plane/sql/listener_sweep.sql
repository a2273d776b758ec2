-- Contract: deletes the listeners of other boots of the machine, which cannot have survived. A place is
-- `boot:namespace`.
DELETE FROM plane_listener WHERE substr(place, 1, instr(place, ':') - 1) <> :boot;
