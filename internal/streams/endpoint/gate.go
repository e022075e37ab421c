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

// What clients may ask of the API server before it is known who they are.
const (
	// maxReviews is how many clients are authenticated at a time.
	maxReviews = 32
	// failureRate is how often a second an address may fail that has failed failureBurst times.
	failureRate  = rate.Limit(1)
	failureBurst = 20
	// knownAddresses and knownTokens are how many of each are remembered.
	knownAddresses = 4096
	knownTokens    = 4096
	// retryAfter is for clients that are refused, in seconds.
	retryAfter = 5
)

// gate limits authentications: each may be a request to the API server, and anyone who reaches
// the endpoint can cause it. No address is kept out, since it may be that of a proxy, which all
// users share.
type gate struct {
	clock  clock.PassiveClock
	places chan struct{}

	mu        sync.Mutex
	addresses *lru.Cache // of *address, by netip.Prefix
	tokens    *lru.Cache // the digests of those that were valid last
}

// address has the counts of requests from an address.
type address struct {
	failures *rate.Limiter
	// turn is held by each authentication while there were too many failures, one at a time.
	turn chan struct{}
}

func newGate(c clock.PassiveClock) *gate {
	return &gate{clock: c, places: make(chan struct{}, maxReviews), addresses: lru.New(knownAddresses), tokens: lru.New(knownTokens)}
}

// admitRequest waits for the turn of a request. leave is to be called with whether the API server has
// answered, and whether the credentials are valid. Tokens that were valid before do not wait
// for those of others.
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

// rememberToken keeps what the API server said of a token.
func (g *gate) rememberToken(sender *address, token tokenDigest, isValid bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if isValid {
		g.tokens.Add(token, nil)
		return
	}
	g.tokens.Remove(token)
	sender.failures.ReserveN(g.clock.Now(), 1) // as a debt if there is none left
}

func (g *gate) isKnown(token tokenDigest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.tokens.Get(token)
	return ok
}

// addressOf returns what is known of an address. Those of one IPv6 network count as one, since
// a client can have all of them.
func (g *gate) addressOf(remote string) *address {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := networkOf(remote)
	if known, ok := g.addresses.Get(key); ok {
		return known.(*address) //nolint:forcetypeassert // it has no others
	}
	one := &address{failures: rate.NewLimiter(failureRate, failureBurst), turn: make(chan struct{}, 1)}
	g.addresses.Add(key, one)
	return one
}

// tokenHeaders are the headers in which a token can be: as such, and as browsers send it.
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
	from, _ := netip.ParseAddrPort(address) // all texts that are not an address count as one network
	ip, bits := from.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits)
	return network
}
