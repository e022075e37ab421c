// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package port

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

const loopback = "127.0.0.1"

// memoryStore is a Store in memory.
type memoryStore struct{ port int }

func (m *memoryStore) Port() (int, error)     { return m.port, nil }
func (m *memoryStore) SetPort(port int) error { m.port = port; return nil }

func portOf(l net.Listener) int {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	n, _ := strconv.Atoi(port)
	return n
}

// usedPort returns a port that another listener has until the test ends.
func usedPort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", loopback+":0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return portOf(l)
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", loopback+":0")
	assert.NoError(t, err)
	port := portOf(l)
	assert.NoError(t, l.Close())
	return port
}

func TestListen(t *testing.T) {
	type ports struct{ stored, requested, want int } // requested -1: no port was requested; want 0: any other
	for name, setUp := range map[string]func(t *testing.T) ports{
		"stored is used again":    func(t *testing.T) ports { t.Helper(); p := freePort(t); return ports{p, -1, p} },
		"requested before stored": func(t *testing.T) ports { t.Helper(); p := freePort(t); return ports{usedPort(t), p, p} },
		"0 at first is any":       func(*testing.T) ports { return ports{0, 0, 0} },
		"0 prefers the stored":    func(t *testing.T) ports { t.Helper(); p := freePort(t); return ports{p, 0, p} },
		"0 avoids a used one":     func(t *testing.T) ports { t.Helper(); return ports{usedPort(t), 0, 0} },
		"first start is any":      func(*testing.T) ports { return ports{0, -1, 0} },
	} {
		t.Run(name, func(t *testing.T) {
			p := setUp(t)
			store := &memoryStore{p.stored}
			l, err := Listen(t.Context(), loopback, portPointer(p.requested), store)
			assert.NoError(t, err)
			defer func() { _ = l.Close() }()
			assert.True(t, p.want == 0 || portOf(l) == p.want, "listens on %d, want %d", portOf(l), p.want)
			assert.True(t, store.port == portOf(l), "stores %d and listens on %d", store.port, portOf(l))
		})
	}
}

func portPointer(port int) *int {
	if port < 0 {
		return nil
	}
	return &port
}

func TestListenErrors(t *testing.T) {
	busy := usedPort(t)
	inUse := "port " + strconv.Itoa(busy) + " on 127.0.0.1 is in use by another program"
	tooLarge, negative := 65536, -1
	for name, tc := range map[string]struct {
		bind      string
		requested *int
		stored    int
		want      string
	}{
		"requested port in use": {loopback, &busy, 0, inUse},
		"stored port in use":    {loopback, nil, busy, inUse},
		"too large":             {loopback, &tooLarge, 0, "--port is 65536: it must be 0 to 65535"},
		"negative":              {loopback, &negative, 0, "--port is -1: it must be 0 to 65535"},
		"no address":            {"localhost", nil, 0, `--bind-address "localhost" is not an IP address`},
		"not ours":              {"192.0.2.1", nil, 0, "--bind-address 192.0.2.1 is not an address of this host"},
	} {
		t.Run(name, func(t *testing.T) {
			store := &memoryStore{tc.stored}
			_, err := Listen(t.Context(), tc.bind, tc.requested, store)
			assert.True(t, err != nil && strings.HasPrefix(err.Error(), tc.want), "got %v, want %s", err, tc.want)
			assert.True(t, store.port == tc.stored, "stores %d, had %d", store.port, tc.stored)
		})
	}
}

func TestListenClosesAPortThatCannotBeStored(t *testing.T) {
	port := freePort(t)
	full := errors.New("disk full")
	assert.ErrorIs(t, "a full disk", assert.ErrorOf(Listen(t.Context(), loopback, &port, failingStore{full})), full)
	l, err := Listen(t.Context(), loopback, &port, &memoryStore{})
	assert.NoError(t, err)
	_ = l.Close()
}

type failingStore struct{ err error }

func (f failingStore) Port() (int, error) { return 0, nil }
func (f failingStore) SetPort(int) error  { return f.err }
