// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Limits for the calls of the API server that unauthenticated clients can cause.
const (
	// maxReviews is how many clients are authenticated at a time.
	maxReviews = 32
	// failureRate is how often a second an address may fail, after failureBurst failures at first, before
	// its requests are handled one at a time.
	failureRate  = rate.Limit(1)
	failureBurst = 20
	// knownAddresses and knownTokens are how many addresses and tokens are remembered.
	knownAddresses = 4096
	knownTokens    = 4096
	// retryAfter is after how many seconds a refused client should try again.
	retryAfter = 5
)

// gate limits authentications, since anyone who reaches the endpoint can cause one, and each may be a
// request to the API server. It never excludes an address, which may be the address of a proxy that
// all users share.
type gate struct {
	clock  clock.PassiveClock
	places chan struct{}

	mu        sync.Mutex
	addresses *lru.Cache // of *address, by netip.Prefix
	tokens    *lru.Cache // the digests of tokens that were valid when they were last reviewed
}

// address limits the requests from an address.
type address struct {
	failures *rate.Limiter
	// turn has room for one: after too many failures, an authentication waits for its turn.
	turn chan struct{}
}

func newGate(c clock.PassiveClock) *gate {
	return &gate{clock: c, places: make(chan struct{}, maxReviews), addresses: lru.New(knownAddresses), tokens: lru.New(knownTokens)}
}

// admitRequest waits until the request may be authenticated. The caller must then call leave with whether
// the API server has answered and whether the credentials are valid. A token that was valid before does not
// wait for the failing requests from its address.
func (g *gate) admitRequest(r *http.Request) (leave func(isAnswered, isValid bool), err error) {
	from, token := g.addressOf(r.RemoteAddr), digestOf(r)
	needed := []chan struct{}{g.places}
	if from.failures.TokensAt(g.clock.Now()) < 1 && !g.isKnown(token) {
		needed = []chan struct{}{from.turn, g.places}
	}
	var taken []chan struct{}
	release := func() {
		for _, place := range taken {
			<-place
		}
	}
	for _, place := range needed {
		select {
		case place <- struct{}{}:
			taken = append(taken, place)
		case <-r.Context().Done():
			release()
			return nil, r.Context().Err()
		}
	}
	return func(isAnswered, isValid bool) {
		if isAnswered {
			g.rememberToken(from, token, isValid)
		}
		release()
	}, nil
}

// rememberToken records whether the API server accepts the token.
func (g *gate) rememberToken(sender *address, token tokenDigest, isValid bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isValid {
		g.tokens.Add(token, nil)
		return
	}
	g.tokens.Remove(token)
	sender.failures.ReserveN(g.clock.Now(), 1) // may make the balance negative, unlike AllowN
}

func (g *gate) isKnown(token tokenDigest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.tokens.Get(token)
	return ok
}

// addressOf returns the record of an address. All addresses of an IPv6 network share a record, since one
// client can have all of them.
func (g *gate) addressOf(remote string) *address {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := networkOf(remote)
	if known, ok := g.addresses.Get(key); ok {
		return known.(*address) //nolint:forcetypeassert // the cache has no other type
	}
	added := &address{failures: rate.NewLimiter(failureRate, failureBurst), turn: make(chan struct{}, 1)}
	g.addresses.Add(key, added)
	return added
}

// tokenHeaders are the headers that can contain a token. Browsers can only use the second.
var tokenHeaders = []string{"Authorization", "Sec-Websocket-Protocol"}

// tokenDigest identifies the token of a request.
type tokenDigest [sha256.Size]byte

func digestOf(r *http.Request) tokenDigest {
	var all []string
	for _, name := range tokenHeaders {
		all = append(all, r.Header.Values(name)...)
	}
	return sha256.Sum256([]byte(strings.Join(all, "\n")))
}

// hasToken reports whether a request may have a token.
func hasToken(r *http.Request) bool {
	return slices.ContainsFunc(tokenHeaders, func(name string) bool { return r.Header.Get(name) != "" })
}

func networkOf(address string) netip.Prefix {
	from, _ := netip.ParseAddrPort(address) // invalid addresses count as one network
	ip, bits := from.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits)
	return network
}
