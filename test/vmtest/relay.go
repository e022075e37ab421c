// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// chunk is how much of a stream is forwarded at a time.
const chunk = 32 << 10

// relay listens at one address, forwards to another one, and can disturb the
// traffic.
type relay struct {
	t testing.TB
	// here and there are the two addresses.
	here, there net.Addr

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	held     bool
	late     time.Duration
	changed  chan struct{} // closed when held changes
}

// newRelay opens a connection to there, which closes at the test's end.
func newRelay(t testing.TB, here, there net.Addr) *relay {
	r := &relay{t: t, here: here, there: there, conns: map[net.Conn]bool{}, changed: make(chan struct{})}
	r.Restore()
	t.Cleanup(r.Cut)
	return r
}

// Cut breaks existing connections and refuses new ones.
func (r *relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener == nil {
		return
	}
	_ = r.listener.Close()
	r.listener = nil
	for c := range r.conns {
		_ = c.Close()
	}
	r.conns = map[net.Conn]bool{}
	r.hold(false)
}

// Blackhole holds back all traffic, in both directions and on new connections too,
// until the relay is restored or cut. Neither side is notified.
func (r *relay) Blackhole() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold(true)
}

// Late delays replies from now on. Requests are forwarded at once.
func (r *relay) Late(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = by
}

// Restore ends all disturbances and delivers what was held back.
func (r *relay) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = 0
	r.hold(false)
	if r.listener != nil {
		return
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), r.here.Network(), r.here.String())
	if err != nil {
		r.t.Errorf("listening on %s: %v", r.here, err)
		return
	}
	r.listener, r.here = l, l.Addr()
	go r.accept(l)
}

// hold requires the lock to be held.
func (r *relay) hold(held bool) {
	r.held = held
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *relay) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go r.serve(c)
	}
}

func (r *relay) serve(c net.Conn) {
	s, err := (&net.Dialer{}).DialContext(context.Background(), r.there.Network(), r.there.String())
	if err != nil || !r.track(c, s) {
		_ = c.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { r.carry(s, c, func() time.Duration { return 0 }) })
	both.Go(func() { r.carry(c, s, r.lateness) })
	both.Wait()
	r.forget(c, s)
}

func (r *relay) lateness() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.late
}

// parcel is what was read at once, and when it is to be delivered.
type parcel struct {
	content []byte
	due     time.Time
}

// carry forwards one direction of a connection until it ends, and then ends the
// other one.
func (r *relay) carry(to, from net.Conn, late func() time.Duration) {
	parcels := make(chan parcel, 64)
	go func() {
		defer close(parcels)
		for {
			content := make([]byte, chunk)
			n, err := from.Read(content)
			parcels <- parcel{content[:n], time.Now().Add(late())}
			if err != nil {
				return
			}
		}
	}()
	for p := range parcels {
		r.await(p.due)
		if _, err := to.Write(p.content); err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	for range parcels { // lets the reader finish
	}
}

// await returns when something that is due may be delivered.
func (r *relay) await(due time.Time) {
	time.Sleep(time.Until(due))
	for {
		r.mu.Lock()
		held, changed := r.held, r.changed
		r.mu.Unlock()
		if !held {
			return
		}
		<-changed
	}
}

// track returns false if the relay was cut meanwhile.
func (r *relay) track(c, s net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener == nil {
		_ = s.Close()
		return false
	}
	r.conns[c], r.conns[s] = true, true
	return true
}

func (r *relay) forget(c, s net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
	delete(r.conns, s)
}
