// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// chunkSize is how much of a stream is forwarded at a time.
const chunkSize = 32 << 10

// relay listens at one address, forwards to another one, and can disturb the
// traffic.
type relay struct {
	errorf func(format string, args ...any)
	// local is the address of this side. Of the other side's, the first that answers is used.
	local   net.Addr
	remotes []net.Addr

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	held     bool
	delay    time.Duration
	changed  chan struct{} // closed when held changes
}

// newRelay returns a relay to the remotes, which is closed at the end of the test.
func newRelay(t testing.TB, local net.Addr, remotes ...net.Addr) *relay {
	r := openRelay(t.Errorf, local, remotes...)
	t.Cleanup(r.Disconnect)
	return r
}

// openRelay returns a relay that the caller must Disconnect.
func openRelay(errorf func(format string, args ...any), local net.Addr, remotes ...net.Addr) *relay {
	r := &relay{errorf: errorf, local: local, remotes: remotes, conns: map[net.Conn]bool{}, changed: make(chan struct{})}
	r.Restore()
	return r
}

// Disconnect closes existing connections and refuses new ones.
func (r *relay) Disconnect() {
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
	r.setHeld(false)
}

// Blackhole holds back all traffic, in both directions and on new connections too,
// until the relay is restored or disconnected. Neither side is notified.
func (r *relay) Blackhole() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setHeld(true)
}

// DelayReplies delays replies from now on. Requests are forwarded immediately.
func (r *relay) DelayReplies(delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = delay
}

// Restore ends all disturbances and delivers what was held back.
func (r *relay) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = 0
	r.setHeld(false)
	if r.listener != nil {
		return
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), r.local.Network(), r.local.String())
	if err != nil {
		r.errorf("listening on %s: %v", r.local, err)
		return
	}
	r.listener, r.local = l, l.Addr()
	go r.acceptConnections(l)
}

// setHeld requires the lock to be held.
func (r *relay) setHeld(held bool) {
	r.held = held
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *relay) acceptConnections(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go r.forwardConnection(c)
	}
}

func (r *relay) forwardConnection(c net.Conn) {
	s, err := r.dialTarget()
	if err != nil || !r.addConnections(c, s) {
		_ = c.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { r.forwardStream(s, c, func() time.Duration { return 0 }) })
	both.Go(func() { r.forwardStream(c, s, r.replyDelay) })
	both.Wait()
	r.removeConnections(c, s)
}

// dialTarget connects to the first of the remotes that answers.
func (r *relay) dialTarget() (conn net.Conn, err error) {
	for _, remote := range r.remotes {
		if conn, err = (&net.Dialer{}).DialContext(context.Background(), remote.Network(), remote.String()); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (r *relay) replyDelay() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delay
}

// delivery is the result of one read, and when to deliver it.
type delivery struct {
	content []byte
	due     time.Time
}

// forwardStream forwards one direction of a connection until it ends, and then ends the
// other one.
func (r *relay) forwardStream(target, source net.Conn, late func() time.Duration) {
	deliveries := make(chan delivery, 64)
	go func() {
		defer close(deliveries)
		for {
			content := make([]byte, chunkSize)
			n, err := source.Read(content)
			deliveries <- delivery{content[:n], time.Now().Add(late())}
			if err != nil {
				return
			}
		}
	}()
	for p := range deliveries {
		r.waitUntilDue(p.due)
		if _, err := target.Write(p.content); err != nil {
			break
		}
	}
	_, _ = source.Close(), target.Close()
	for range deliveries { // lets the reader finish
	}
}

// waitUntilDue returns when something that is due may be delivered.
func (r *relay) waitUntilDue(due time.Time) {
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

// addConnections returns false if the relay was disconnected meanwhile.
func (r *relay) addConnections(c, s net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener == nil {
		_ = s.Close()
		return false
	}
	r.conns[c], r.conns[s] = true, true
	return true
}

func (r *relay) removeConnections(c, s net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
	delete(r.conns, s)
}
