// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// stub is a machine whose answers a test sets.
type stub struct {
	status Status
	err    error
	calls  chan any
}

func (s *stub) Status(context.Context) (Status, error) { return s.status, s.err }
func (s *stub) Pause(context.Context) error            { s.calls <- "pause"; return s.err }
func (s *stub) Resume(context.Context) error           { s.calls <- "resume"; return s.err }
func (s *stub) SetGracePeriod(_ context.Context, period time.Duration) error {
	s.calls <- period
	return s.err
}

func (s *stub) Grow(_ context.Context, sizes Sizes) (Sizes, error) {
	s.calls <- sizes
	return sizes, s.err
}

func (s *stub) Probe(ctx context.Context, port int32) error {
	s.calls <- port
	if port == 7 { // where nothing answers
		<-ctx.Done()
		s.calls <- "left"
		return failure.ErrNoAnswer
	}
	return s.err
}

const name = "6f9c3c52-4b1d-4f5e-8a55-0a4b8f1d2c3e"

// newPair makes the credentials of a machine and of its client.
func newPair(t *testing.T, name string) (machine, client Credentials) {
	t.Helper()
	seed := make([]byte, SeedBytes)
	_, _ = rand.Read(seed) // it never fails
	machine, err := MachineCredentials(seed, nil, name, "run", time.Now())
	client, clientErr := ClientCredentials(seed, name, "run", time.Now())
	assert.NoError(t, errors.Join(err, clientErr))
	return machine, client
}

func clientConfig(t *testing.T, c Credentials) *tls.Config {
	t.Helper()
	config, err := c.ClientConfig(name)
	assert.NoError(t, err)
	return config
}

// serve serves a machine to this host, without the listener that refuses it, and returns its
// address.
func serve(t *testing.T, c Credentials, m Machine) string {
	t.Helper()
	s, err := NewServer(t.Context(), c, m, nil)
	assert.NoError(t, err)
	listener := framework.Listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.serveTLS(listener) }()
	t.Cleanup(func() { _ = s.http.Close() })
	return listener.Addr().String()
}

func TestCalls(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	m := &stub{calls: make(chan any, 2), status: Status{
		State: StatePaused, Waits: WaitRoom, Accelerator: "kvm", StartedAt: time.Unix(1e9, 5).UTC(),
		CPUNanoseconds: 1, MemoryBytes: 2, GuestMemoryBytes: 3, Copied: &Copied{4, 5},
	}}
	c := NewClient(serve(t, machine, m), clientConfig(t, client))
	got, err := c.Status(t.Context())
	assert.True(t, err == nil && reflect.DeepEqual(got, m.status), "the status is %+v, %v, want %+v", got, err, m.status)
	sizes := Sizes{RootDisk: 5, Volumes: map[string]int64{"data": 6}}
	calls := map[string]struct {
		call func() error
		want any
	}{
		"pause":  {func() error { return c.Pause(t.Context()) }, "pause"},
		"resume": {func() error { return c.Resume(t.Context()) }, "resume"},
		"probe":  {func() error { return c.Probe(t.Context(), 65535) }, int32(65535)},
		"grow":   {func() error { return assert.ErrorOf(c.Grow(t.Context(), sizes)) }, sizes},
		"grace":  {func() error { return c.SetGracePeriod(t.Context(), time.Minute) }, time.Minute},
	}
	for _, failure := range []error{nil, failure.ErrNotRunning, failure.ErrFenced, failure.ErrUnknown, failure.ErrNoAnswer, failure.ErrFailed} {
		m.err = failure
		for name, c := range calls {
			assert.ErrorIs(t, name, c.call(), failure)
			got := <-m.calls
			assert.True(t, reflect.DeepEqual(got, c.want), "%s arrives as %v, want %v", name, got, c.want)
		}
	}
	m.err = errors.New("words of QEMU")
	err = c.Pause(t.Context())
	assert.True(t, errors.Is(err, failure.ErrFailed) && !strings.Contains(err.Error(), "QEMU"), "an unknown failure is %v", err)
}

// TestLeftProbe checks that a machine stops waiting for a guest once the client has left.
func TestLeftProbe(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	m := &stub{calls: make(chan any)}
	c := NewClient(serve(t, machine, m), clientConfig(t, client))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Probe(ctx, 7) }()
	<-m.calls
	cancel()
	err := <-ended
	assert.True(t, errors.Is(err, failure.ErrUnreachable) && errors.Is(err, context.Canceled), "a call that was ended returns %v", err)
	got := <-m.calls
	assert.True(t, got == "left", "the machine gets %v", got)
}

// TestIdentity checks that both ends take each other alone.
func TestIdentity(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	_, stranger := newPair(t, name)
	otherMachine, otherClient := newPair(t, "other")
	address := serve(t, machine, &stub{status: Status{State: StateRunning}})
	for name, c := range map[string]struct {
		address string
		config  *tls.Config
		want    error
	}{
		"right":                      {address, clientConfig(t, client), nil},
		"another authority":          {address, clientConfig(t, stranger), failure.ErrIdentity},
		"a machine of another name":  {serve(t, otherMachine, &stub{}), clientConfig(t, otherClient), failure.ErrIdentity},
		"another client certificate": {address, clientConfig(t, Credentials{CA: client.CA, Cert: stranger.Cert, Key: stranger.Key}), failure.ErrIdentity},
		"the machine's certificate":  {address, clientConfig(t, machine), failure.ErrIdentity},
		"TLS 1.2":                    {address, oldTLS(clientConfig(t, client)), failure.ErrIdentity},
		"no certificate":             {address, withoutCertificate(clientConfig(t, client)), failure.ErrIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.ErrorIs(t, "the status", assert.ErrorOf(NewClient(c.address, c.config).Status(t.Context())), c.want)
		})
	}
}

// TestDerived checks that the ends of two derivations take each other only if the seed, the name
// and the run are the same.
func TestDerived(t *testing.T) {
	t.Parallel()
	seed := bytes.Repeat([]byte{7}, SeedBytes)
	machine, err := MachineCredentials(seed, nil, name, "run", time.Now())
	assert.NoError(t, err)
	address := serve(t, machine, &stub{status: Status{State: StateRunning}})
	for what, c := range map[string]struct {
		seed      []byte
		name, run string
		want      error
	}{
		"same":         {seed, name, "run", nil},
		"another seed": {bytes.Repeat([]byte{8}, SeedBytes), name, "run", failure.ErrIdentity},
		"another name": {seed, "other", "run", failure.ErrIdentity},
		"another run":  {seed, name, "next", failure.ErrIdentity},
	} {
		client, err := ClientCredentials(c.seed, c.name, c.run, time.Now().Add(time.Hour))
		assert.NoError(t, err)
		assert.ErrorIs(t, what, assert.ErrorOf(NewClient(address, clientConfig(t, client)).Status(t.Context())), c.want)
	}
	assert.ErrorSays(t, "a short seed", assert.ErrorOf(MachineCredentials(seed[1:], nil, name, "run", time.Now())), "must have 32")
}

func oldTLS(c *tls.Config) *tls.Config {
	c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	return c
}

func withoutCertificate(c *tls.Config) *tls.Config {
	c.Certificates = nil
	return c
}

// TestAnswers checks that a machine that its guest has broken out of can neither make up a state
// nor put its words into an error.
func TestAnswers(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	config, _, err := machine.serverConfig()
	assert.NoError(t, err)
	for name, c := range map[string]struct {
		code         int
		header, body string
		want         error
	}{
		"valid":          {200, "", `{"state":"running","later":1}`, nil},
		"state":          {200, "", `{"state":"hunter2"}`, failure.ErrProtocol},
		"wait":           {200, "", `{"state":"running","waits":"hunter2"}`, failure.ErrProtocol},
		"accelerator":    {200, "", `{"state":"running","accelerator":"hunter2"}`, failure.ErrProtocol},
		"negative usage": {200, "", `{"state":"running","cpuNanoseconds":-1}`, failure.ErrProtocol},
		"time":           {200, "", `{"state":"running","startedAt":"hunter2"}`, failure.ErrProtocol},
		"no JSON":        {200, "", "hunter2", failure.ErrProtocol},
		"endless":        {200, "", `{"state":"running"` + strings.Repeat(" ", maxAnswer) + "}", failure.ErrProtocol},
		"header":         {200, strings.Repeat("hunter2", maxHeader), `{"state":"running"}`, failure.ErrProtocol},
		"code":           {418, "", "hunter2", failure.ErrProtocol},
		"redirect":       {302, "", "hunter2", failure.ErrProtocol},
		"failure":        {422, "", `{"failure":"NotRunning","text":"hunter2"}`, failure.ErrNotRunning},
		"odd failure":    {422, "", `{"failure":"hunter2"}`, failure.ErrProtocol},
		"no failure":     {422, "", "{}", failure.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != statusPath {
					_, _ = io.WriteString(w, `{"state":"running"}`) // to who follows a redirect
					return
				}
				w.Header().Set("X-Header", c.header)
				w.Header().Set("Location", "/hunter2")
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			s.TLS = config.Clone()
			s.StartTLS()
			t.Cleanup(s.Close)
			_, err := NewClient(s.Listener.Addr().String(), clientConfig(t, client)).Status(t.Context())
			assert.True(t, errors.Is(err, c.want) && (err == nil || !strings.Contains(err.Error(), "hunter2")), "the status fails with %v, want %v", err, c.want)
		})
	}
}

// TestRequests checks that what a machine does not understand changes nothing.
func TestRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method, path, body string
		want               int
	}{
		"port":          {"POST", probePath + "?port=65536", "", 400},
		"no port":       {"POST", probePath, "", 400},
		"sizes":         {"POST", growPath, "x", 400},
		"unknown field": {"POST", growPath, `{"root":1}`, 400},
		"too large":     {"POST", growPath, strings.Repeat(" ", maxRequest) + "{}", 400},
		"method":        {"GET", pausePath, "", 405},
		"path":          {"POST", "/v2/pause", "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &stub{calls: make(chan any, 1)}
			w := httptest.NewRecorder()
			newHandler(m).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body)))
			assert.True(t, w.Code == c.want && len(m.calls) == 0, "it is answered with %d, want %d; %d calls", w.Code, c.want, len(m.calls))
		})
	}
}

// TestOutside checks from where connections are taken.
func TestOutside(t *testing.T) {
	t.Parallel()
	l := outsideListener{addresses: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("10.0.0.5"), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.ParseIP("fd00::5"), Mask: net.CIDRMask(64, 128)}}, nil
	}}
	for from, want := range map[string]bool{
		"10.0.0.6": true, "fd00::6": true, "::ffff:10.0.0.6": true,
		"10.0.0.5": false, "::ffff:10.0.0.5": false, "fd00::5": false,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false,
	} {
		assert.Equal(t, from+" is outside", l.isOutside(&net.TCPAddr{IP: net.ParseIP(from)}), want)
	}
	l.addresses = func() ([]net.Addr, error) { return nil, errors.New("no netlink") }
	assert.True(t, !l.isOutside(&net.TCPAddr{IP: net.ParseIP("10.0.0.6")}) && !l.isOutside(&net.UnixAddr{}), "a connection of unknown origin is taken")
}

// TestServeRefusesItself checks that a listener closes connections from the same host, without an
// answer.
func TestServeRefusesItself(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	s, err := NewServer(t.Context(), machine, &stub{status: Status{State: StateRunning}}, nil)
	assert.NoError(t, err)
	listener := framework.Listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.http.Close() })
	for range 2 * maxConnections { // none of which takes the place of another
		if _, err := NewClient(listener.Addr().String(), clientConfig(t, client)).Status(t.Context()); !errors.Is(err, failure.ErrUnreachable) {
			t.Fatalf("this host gets %v", err)
		}
	}
}

// TestFull checks that a listener keeps a bounded number of connections, and serves the next
// client once one has left.
func TestFull(t *testing.T) {
	t.Parallel()
	machine, client := newPair(t, name)
	address := serve(t, machine, &stub{status: Status{State: StateRunning}})
	var idle []net.Conn
	for range maxConnections {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		assert.NoError(t, err)
		idle = append(idle, conn)
	}
	c := NewClient(address, clientConfig(t, client))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	assert.ErrorIs(t, "a full listener", assert.ErrorOf(c.Status(ctx)), context.DeadlineExceeded)
	for _, conn := range idle {
		_ = conn.Close()
	}
	assert.ErrorIs(t, "a listener whose clients have left answers with", assert.ErrorOf(c.Status(t.Context())), nil)
}

func TestReadCredentials(t *testing.T) {
	t.Parallel()
	machine, _ := newPair(t, name)
	folder := t.TempDir()
	for file, content := range map[string][]byte{CAFile: machine.CA, CertFile: machine.Cert, KeyFile: machine.Key} {
		assert.ErrorIs(t, "without "+file, assert.ErrorOf(ReadCredentials(folder)), os.ErrNotExist)
		assert.NoError(t, os.WriteFile(filepath.Join(folder, file), content, 0o600))
	}
	got, err := ReadCredentials(folder)
	assert.True(t, err == nil && reflect.DeepEqual(got, machine), "got %v, %v", got, err)
	machine.CA = []byte("none")
	assert.ErrorSays(t, "without an authority", assert.ErrorOf(NewServer(t.Context(), machine, &stub{}, nil)), "ca.crt does not contain a certificate")
}

// TestParseResolvers checks what is taken from a resolv.conf of a pod.
func TestParseResolvers(t *testing.T) {
	t.Parallel()
	resolvers, domain, err := parseResolvers("search team.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\n# nameserver 192.0.2.1\nnameserver\nnameserver fd00::a\noptions ndots:5\n")
	got := fmt.Sprintln(resolvers, domain, err)
	assert.True(t, got == "[10.96.0.10:53 [fd00::a]:53] team.svc.cluster.local <nil>\n", "got %s", got)
	for _, text := range []string{"", "search team.svc.cluster.local\n", "nameserver\n", "nameserver dns.example\n"} {
		_, _, err := parseResolvers(text)
		assert.ErrorIs(t, text, err, ErrNoResolver, "does not name a nameserver")
	}
}
