// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/http"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// What clients may ask of the API server before it is known who they are.
const (
	// maxReviews is how many clients are authenticated at a time.
	maxReviews = 32
	// failureRate is how often a second an address may fail that has failed failureBurst times.
	failureRate  = rate.Limit(1)
	failureBurst = 20
	// knownAddresses is how many addresses are remembered.
	knownAddresses = 4096
	// retryAfter is for clients that are refused, in seconds.
	retryAfter = 5
)

// gate limits authentications: each may be a request to the API server, and anyone who reaches
// the endpoint can cause it.
type gate struct {
	clock  clock.PassiveClock
	places chan struct{}

	mu       sync.Mutex
	failures *lru.Cache // of *rate.Limiter, by netip.Prefix
}

func newGate(c clock.PassiveClock) *gate {
	return &gate{clock: c, places: make(chan struct{}, maxReviews), failures: lru.New(knownAddresses)}
}

// enter waits for the turn of a request. leave is to be called with whether the request failed
// for want of valid credentials.
func (g *gate) enter(r *http.Request) (leave func(failed bool), err error) {
	limiter := g.limiterOf(r.RemoteAddr)
	if err := g.checkFailures(limiter); err != nil {
		return nil, err
	}
	select {
	case g.places <- struct{}{}:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	leave = func(failed bool) {
		if failed { // before the next one is let in, and as a debt if there was no token left
			limiter.ReserveN(g.clock.Now(), 1)
		}
		<-g.places
	}
	if err := g.checkFailures(limiter); err != nil { // others have failed meanwhile
		leave(false)
		return nil, err
	}
	return leave, nil
}

// checkFailures refuses an address that has failed too often. Those of its requests that have a
// place by then, at most maxReviews, may fail beyond that, and it waits for them longer.
func (g *gate) checkFailures(limiter *rate.Limiter) error {
	if limiter.TokensAt(g.clock.Now()) < 1 {
		return apierrors.NewTooManyRequests("too many requests from this address had no valid credentials", retryAfter)
	}
	return nil
}

// limiterOf returns the limiter of an address. Those of one IPv6 network share theirs, since a
// client can have all of them.
func (g *gate) limiterOf(address string) *rate.Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := networkOf(address)
	if known, ok := g.failures.Get(key); ok {
		return known.(*rate.Limiter) //nolint:forcetypeassert // it has no others
	}
	limiter := rate.NewLimiter(failureRate, failureBurst)
	g.failures.Add(key, limiter)
	return limiter
}

func networkOf(address string) netip.Prefix {
	from, _ := netip.ParseAddrPort(address) // one that is no address is one network with its like
	ip, bits := from.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits)
	return network
}
