-- Contract: forgets the listeners of other boots of the machine, who cannot have survived. A place is `boot:namespace`.
DELETE FROM plane_listener WHERE substr(place, 1, instr(place, ':') - 1) <> :boot;
