// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/assert"
)

// DockerProxy forwards to a Docker engine and can be disconnected, as if the engine was
// stopped.
type DockerProxy struct{ *relay }

// NewDockerProxy opens a proxy for the engine that DOCKER_HOST names.
func NewDockerProxy(t testing.TB) *DockerProxy {
	t.Helper()
	p := OpenDockerProxy(filepath.Join(ShortTempDir(t), "docker.sock"), DockerClient(t).DaemonHost(), t.Errorf)
	t.Cleanup(p.Disconnect)
	return p
}

// OpenDockerProxy opens a proxy for an engine, with its socket at a path. The caller must Disconnect it.
func OpenDockerProxy(socket, host string, errorf func(format string, args ...any)) *DockerProxy {
	network, engine, _ := strings.Cut(host, "://")
	return &DockerProxy{openRelay(errorf, address{"unix", socket}, address{network, engine})}
}

// Env returns the variables with which a program uses the proxy.
func (p *DockerProxy) Env() []string { return []string{"DOCKER_HOST=unix://" + p.local.String()} }

// address is a net.Addr that is known before a listener uses it.
type address struct{ network, name string }

// Network is "unix" or "tcp".
func (a address) Network() string { return a.network }

func (a address) String() string { return a.name }

// APIProxy forwards to the API server of a cluster, for one of its clients. It can
// be disconnected, drop all traffic, or delay replies.
type APIProxy struct {
	*relay
	// Kubeconfig is the file that makes a program use the proxy.
	Kubeconfig string
}

// proxyHost is an address that no program connects from, so that the proxy's port stays
// free while the proxy is disconnected.
const proxyHost = "127.0.0.2:0"

// NewAPIProxy opens a proxy for the cluster's API server.
func (c *Cluster) NewAPIProxy(t testing.TB) *APIProxy {
	t.Helper()
	server, err := url.Parse(c.Config.Host)
	assert.NoError(t, err)
	p := &APIProxy{newRelay(t, address{"tcp", proxyHost}, address{"tcp", server.Host}), filepath.Join(t.TempDir(), "kubeconfig")}
	assert.NoError(t, c.writeKubeconfig(p.Kubeconfig, p.local, server.Hostname()))
	return p
}

// writeKubeconfig writes the admin's kubeconfig with another address of the
// server, whose certificate is valid for name.
func (c *Cluster) writeKubeconfig(path string, address net.Addr, name string) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = fmt.Sprintf("https://%s", address), name
	}
	return clientcmd.WriteToFile(*config, path)
}

// ServiceProxy forwards to the first of several replicas that answers, as a Service forwards
// to a replica that is ready.
type ServiceProxy struct{ *relay }

// NewServiceProxy opens a proxy for replicas at the given addresses.
func NewServiceProxy(t testing.TB, replicas ...string) *ServiceProxy {
	t.Helper()
	remotes := make([]net.Addr, len(replicas))
	for i, replica := range replicas {
		remotes[i] = address{"tcp", replica}
	}
	return &ServiceProxy{newRelay(t, address{"tcp", "127.0.0.1:0"}, remotes...)}
}

// Address returns the proxy's address.
func (p *ServiceProxy) Address() string { return p.local.String() }

// chunkSize is how much of a stream is forwarded at a time.
const chunkSize = 32 << 10

// relay listens at one address, forwards to another one, and can disturb the
// connections.
type relay struct {
	errorf func(format string, args ...any)
	// local is the address at which the relay listens. It forwards to the first of remotes that answers.
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

// delivery is the result of one read, and the time at which to deliver it.
type delivery struct {
	content []byte
	due     time.Time
}

// forwardStream forwards one direction of a connection until it ends, and then closes both
// connections.
func (r *relay) forwardStream(target, source net.Conn, delay func() time.Duration) {
	deliveries := make(chan delivery, 64)
	go func() {
		defer close(deliveries)
		for {
			content := make([]byte, chunkSize)
			n, err := source.Read(content)
			deliveries <- delivery{content[:n], time.Now().Add(delay())}
			if err != nil {
				return
			}
		}
	}()
	for d := range deliveries {
		r.waitUntilDue(d.due)
		if _, err := target.Write(d.content); err != nil {
			break
		}
	}
	_, _ = source.Close(), target.Close()
	for range deliveries { // lets the reader finish
	}
}

// waitUntilDue waits for a time, and until the relay does not hold traffic back.
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

// addConnections returns false if the relay has been disconnected.
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
