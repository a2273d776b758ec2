/* A lease service, clients that are stopped at the worst moment, and storage that may or may not look at fences.
 *
 * Time is left out on purpose: a lease may run out at any step, and a write that was sent may arrive at any later step,
 * after its sender was stopped, has given up, or is gone. That covers every pause, every clock and every network.
 *
 * What must never happen:
 *   read-modify-write (default): a write is accepted that was made from something read before another accepted write.
 *   Then that other write, which its writer was told is safe, is gone.
 *   -DBLIND: clients write without reading. A write of an earlier grant is accepted after one of a later grant.
 *
 * What storage does:
 *   (nothing)        accepts everything
 *   -DCHECK_WRITES   refuses a write whose fence is below the highest one it has met
 *   -DCHECK_READS    likewise for reads, and remembers the reader's fence: `enter` of a Holdfast guard
 *   -DSTRICTLY       refuses also a fence that it has met: then a holder can write only once
 *
 * What happens to the service:
 *   -DFAILOVER       it may lose the latest grant together with its counter (a replica that lagged behind)
 *   -DSPLIT          a second service may be promoted while the first goes on granting to those who reach it
 *   -DEPOCH          each promotion raises an epoch, which is the high part of every fence
 */

#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef GRANTS
#define GRANTS 5
#endif
#ifdef SPLIT
#define SITES 2
#else
#define SITES 1
#endif

#define NO_CLIENT CLIENTS
#define NOTHING 0
#define FRESH 1
#define STALE 2
#ifdef EPOCH
#define FENCE(place) (epoch[place] * 16 + counter[place])
#else
#define FENCE(place) counter[place]
#endif

byte holder[SITES] = NO_CLIENT; /* the service: who has the lease, */
byte counter[SITES];         /* the counter behind the fences, */
byte epoch[SITES];           /* and how often it was promoted */
bool second_serves;
byte grants;

byte highest;                /* storage: the highest fence it has met */
byte newest;                 /* and the latest grant under which it has accepted a write */

bool believes[CLIENTS];      /* a client: whether it believes to hold the lease, */
byte at[CLIENTS];            /* from which service, */
byte fence[CLIENTS];         /* under which fence, */
byte turn[CLIENTS];          /* as the how-manieth grant, */
byte view[CLIENTS];          /* and what it has read: nothing, something fresh, something stale */

byte sent[CLIENTS];          /* the network: the fence of a write that is on its way, 0 if none is, */
byte sent_view[CLIENTS];     /* what it was made from, */
byte sent_turn[CLIENTS];     /* and under which grant */

inline forget(who) {
    believes[who] = false;
    fence[who] = 0;
    view[who] = NOTHING;
    turn[who] = 0;
    at[who] = 0;
}

inline accept(who) {
#ifdef BLIND
    assert(sent_turn[who] >= newest); /* else a later grant's write has just been overwritten by an earlier one's */
    newest = sent_turn[who];
#else
    assert(sent_view[who] == FRESH); /* else an acknowledged update has just been lost */
    other = 0;
    do
    :: other < CLIENTS ->
        if
        :: other != who && view[other] == FRESH -> view[other] = STALE
        :: else
        fi;
        if
        :: other != who && sent_view[other] == FRESH -> sent_view[other] = STALE
        :: else
        fi;
        other++
    :: else -> break
    od;
    other = 0;
#endif
}

inline deliver(who) {
    atomic {
        sent[who] != 0 ->
#ifdef CHECK_WRITES
        if
#ifdef STRICTLY
        :: sent[who] > highest ->
#else
        :: sent[who] >= highest ->
#endif
            highest = sent[who];
            printf("storage accepts the write of client %d under fence %d\n", who, sent[who]);
            accept(who)
        :: else ->
            printf("storage refuses the write of client %d under fence %d: it has met %d\n", who, sent[who], highest)
        fi;
#else
        printf("storage accepts the write of client %d\n", who);
        accept(who);
#endif
        sent[who] = 0;
        sent_view[who] = NOTHING;
        sent_turn[who] = 0
    }
}

inline grant(place) {
    atomic {
        !believes[me] && sent[me] == 0 && holder[place] == NO_CLIENT && grants < GRANTS && (place == 0 || second_serves) ->
        holder[place] = me;
        counter[place]++;
        grants++;
        believes[me] = true;
        at[me] = place;
        fence[me] = FENCE(place);
#ifdef BLIND
        turn[me] = grants;
#endif
        printf("client %d is granted the lease by service %d, fence %d\n", me, place, fence[me])
    }
}

active [CLIENTS] proctype client() {
    byte me = _pid;
end:
    do
    :: grant(0)
#ifdef SPLIT
    :: grant(1)
#endif
#ifndef BLIND
    :: atomic {
        believes[me] && sent[me] == 0 && view[me] != FRESH ->
#ifdef CHECK_READS
        if
        :: fence[me] >= highest ->
            highest = fence[me];
            view[me] = FRESH;
            printf("client %d enters under fence %d, and reads\n", me, fence[me])
        :: else ->
            printf("client %d is refused at its read: fence %d, and %d was met\n", me, fence[me], highest);
            forget(me)
        fi
#else
        view[me] = FRESH;
        printf("client %d reads\n", me)
#endif
    }
#endif
    :: atomic {
#ifdef BLIND
        believes[me] && sent[me] == 0 ->
#else
        believes[me] && sent[me] == 0 && view[me] != NOTHING ->
#endif
        sent[me] = fence[me];
        sent_view[me] = view[me];
        sent_turn[me] = turn[me];
        view[me] = NOTHING;
        printf("client %d sends its write, which is on its way\n", me)
    }
    :: atomic {
        believes[me] ->
        if
        :: holder[at[me]] == me -> holder[at[me]] = NO_CLIENT
        :: else /* compare and delete: what is another's is left alone */
        fi;
        printf("client %d releases the lease, or is told that it is not its own\n", me);
        forget(me)
    }
    :: atomic {
        believes[me] ->
        printf("client %d crashes\n", me);
        forget(me)
    }
    od
}

active proctype world() {
    byte other;
end:
    do
    :: deliver(0)
    :: deliver(1)
#if CLIENTS > 2
    :: deliver(2)
#endif
#if CLIENTS > 3
    :: deliver(3)
#endif
    :: atomic {
        holder[0] != NO_CLIENT ->
        printf("the lease of client %d runs out\n", holder[0]);
        holder[0] = NO_CLIENT
    }
#ifdef SPLIT
    :: atomic {
        holder[1] != NO_CLIENT ->
        printf("the lease of client %d at the second service runs out\n", holder[1]);
        holder[1] = NO_CLIENT
    }
    :: atomic {
        !second_serves ->
        second_serves = true;
        epoch[1] = epoch[0] + 1;
        counter[1] = counter[0];
        holder[1] = holder[0];
        printf("the second service is promoted, and the first does not know\n")
    }
#endif
#ifdef FAILOVER
    :: atomic {
        holder[0] != NO_CLIENT && counter[0] > 0 ->
        printf("failover: the latest grant is forgotten, and its fence with it\n");
        holder[0] = NO_CLIENT;
        counter[0]--;
        epoch[0]++
    }
#endif
    od
}
