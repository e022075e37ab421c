// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

var (
	start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	all   = []string{caFile, servingFile, adminFile, controllerManagerFile, controllerFile, serviceAccountFile}
	// leavesOnly are renewed together, because they are made together.
	leavesOnly = []string{servingFile, adminFile, controllerManagerFile, controllerFile}
)

func newStore(t *testing.T) (*Store, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(start)
	return &Store{
		Dir: filepath.Join(t.TempDir(), "pki"), Clock: clock,
		Hosts: hostsWith(),
	}, clock
}

// hostsWith returns a host's names and addresses, with further ones.
func hostsWith(names ...string) func() []string {
	return func() []string {
		return append(Hosts(net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1), "host", nil), names...)
	}
}

func ensure(t *testing.T, s *Store) []string {
	t.Helper()
	changed, err := s.Ensure()
	assert.NoError(t, err)
	assertServes(t, s)
	return changed
}

// assertServes makes a TLS connection with the files of the store, as kube-apiserver
// and a client do.
func assertServes(t *testing.T, s *Store) {
	t.Helper()
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(read(t, s.CABundle()))
	server := &tls.Config{
		Certificates: []tls.Certificate{keyPair(t, s.Serving())}, ClientCAs: authority,
		ClientAuth: tls.RequireAndVerifyClientCert, Time: s.Clock.Now, MinVersion: tls.VersionTLS13,
	}
	for _, user := range []string{s.Admin(), s.ControllerManager(), s.Controller()} {
		client := &tls.Config{
			Certificates: []tls.Certificate{keyPair(t, user)}, RootCAs: authority,
			ServerName: "localhost", Time: s.Clock.Now, MinVersion: tls.VersionTLS13,
		}
		assert.ErrorIs(t, filepath.Base(user)+" calls", connectTLS(t.Context(), server, client), nil)
	}
	for _, host := range s.Hosts() {
		assert.ReportError(t, keyPair(t, s.Serving()).Leaf.VerifyHostname(host))
	}
}

func connectTLS(ctx context.Context, server, client *tls.Config) error {
	a, b := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- tls.Server(a, server).HandshakeContext(ctx) }()
	conn := tls.Client(b, client)
	err := conn.HandshakeContext(ctx)
	if err != nil {
		return errors.Join(err, b.Close(), <-served)
	}
	return <-served
}

func keyPair(t *testing.T, path string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(path, path)
	assert.NoError(t, err)
	return pair
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	assert.NoError(t, err)
	return data
}

func TestKeysArePrivate(t *testing.T) {
	s, _ := newStore(t)
	ensure(t, s)
	assert.NoError(t, os.Chmod(s.Admin(), 0o644))
	ensure(t, s)
	entries, err := os.ReadDir(s.Dir)
	assert.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		assert.NoError(t, err)
		holdsKey := bytes.Contains(read(t, filepath.Join(s.Dir, e.Name())), []byte("PRIVATE KEY"))
		assert.True(t, !holdsKey || info.Mode().Perm() == 0o600, "%s has mode %v", e.Name(), info.Mode())
	}
}

func TestEnsureRenewsInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		want  []string
	}{
		"half the life of a leaf":       {leafLife / 2, nil},
		"a third left":                  {leafLife - leafRenew + time.Hour, leavesOnly},
		"leaves have ended":             {leafLife + time.Hour, leavesOnly},
		"a clock set back to 1970":      {-start.Sub(time.Unix(0, 0)), leavesOnly},
		"two years to the CA's end":     {caLife - 2*caRenewAt, leavesOnly},
		"the CA would end before leaf":  {caLife - caRenewAt + time.Hour, all[:5]},
		"a host that slept for decades": {2 * caLife, all[:5]},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := newStore(t)
			ensure(t, s)
			clock.SetTime(start.Add(tc.after))
			changed := ensure(t, s)
			assert.True(t, slices.Equal(changed, tc.want), "renewed %v, want %v", changed, tc.want)
		})
	}
}

func TestLeavesEndBeforeTheirCA(t *testing.T) {
	s, clock := newStore(t)
	for at := start; at.Before(start.Add(caLife)); at = at.Add(leafLife - leafRenew) {
		clock.SetTime(at)
		_, err := s.Ensure()
		assert.NoError(t, err)
		ca := keyPair(t, filepath.Join(s.Dir, caFile)).Leaf
		for _, leaf := range []string{s.Serving(), s.Admin()} {
			cert := keyPair(t, leaf).Leaf
			assert.True(t, !cert.NotAfter.After(ca.NotAfter), "at %s %s ends %s, after its CA", at, filepath.Base(leaf), cert.NotAfter)
		}
	}
}

func TestEnsureRepairs(t *testing.T) {
	type harm = func(t *testing.T, s *Store)
	write := func(name string, content func(*testing.T, *Store) []byte) harm {
		return func(t *testing.T, s *Store) {
			t.Helper()
			assert.NoError(t, os.WriteFile(filepath.Join(s.Dir, name), content(t, s), 0o600))
		}
	}
	cut := func(name string) harm {
		return write(name, func(t *testing.T, s *Store) []byte {
			t.Helper()
			whole := read(t, filepath.Join(s.Dir, name))
			return whole[:len(whole)/2]
		})
	}
	remove := func(name string) harm {
		return func(t *testing.T, s *Store) { t.Helper(); assert.NoError(t, os.Remove(filepath.Join(s.Dir, name))) }
	}
	foreign := func(name string) harm {
		return write(name, func(t *testing.T, _ *Store) []byte {
			t.Helper()
			other, _ := newStore(t)
			ensure(t, other)
			return read(t, filepath.Join(other.Dir, name))
		})
	}
	empty := func(*testing.T, *Store) []byte { return nil }
	for name, tc := range map[string]struct {
		harm harm
		want []string
	}{
		"half a serving certificate":         {cut(servingFile), []string{servingFile}},
		"empty admin certificate":            {write(adminFile, empty), []string{adminFile}},
		"no controller certificate":          {remove(controllerFile), []string{controllerFile}},
		"controller-manager of another CA":   {foreign(controllerManagerFile), []string{controllerManagerFile}},
		"half a CA":                          {cut(caFile), all[:5]},
		"no CA, as after a crash at a start": {remove(caFile), all[:5]},
		"another CA":                         {foreign(caFile), leavesOnly},
		"no bundle":                          {remove(caBundleFile), nil},
		"another bundle":                     {foreign(caBundleFile), nil},
		"half a service-account key":         {cut(serviceAccountFile), []string{serviceAccountFile}},
		"no service-account key":             {remove(serviceAccountFile), []string{serviceAccountFile}},
		"new hosts":                          {func(_ *testing.T, s *Store) { s.Hosts = hostsWith("192.0.2.7", "drover.example") }, []string{servingFile}},
		"nothing":                            {func(*testing.T, *Store) {}, nil},
		"a file a crash left":                {write(".tmp-ca.pem-1", empty), nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStore(t)
			changed := ensure(t, s)
			assert.True(t, slices.Equal(changed, all), "the first start made %v", changed)
			tc.harm(t, s)
			changed = ensure(t, s)
			assert.True(t, slices.Equal(changed, tc.want), "made %v, want %v", changed, tc.want)
			_, err := os.Stat(filepath.Join(s.Dir, ".tmp-ca.pem-1"))
			assert.True(t, err != nil, "a temporary file stayed")
			changed = ensure(t, s)
			assert.True(t, len(changed) == 0, "then made %v once more", changed)
		})
	}
}

func TestEnsureDoesNotReplaceUnreadableFiles(t *testing.T) {
	s, _ := newStore(t)
	ensure(t, s)
	path := filepath.Join(s.Dir, caFile)
	assert.NoError(t, os.Remove(path))
	if err := os.Mkdir(path, 0o700); err != nil { // unreadable even for root
		t.Fatal(err)
	}
	_, err := s.Ensure()
	assert.True(t, err != nil, "no error")
}

func TestHosts(t *testing.T) {
	service, local := net.IPv4(10, 0, 0, 1), []net.IP{net.IPv4(192, 0, 2, 7)}
	for name, tc := range map[string]struct {
		bind    string
		in, out []string
	}{
		"loopback":    {"127.0.0.1", []string{"localhost", "127.0.0.1", "10.0.0.1"}, []string{"host", "192.0.2.7"}},
		"one address": {"192.0.2.9", []string{"127.0.0.1", "192.0.2.9"}, []string{"host", "192.0.2.7"}},
		"every IPv4":  {"0.0.0.0", []string{"127.0.0.1", "192.0.2.7", "host"}, []string{"0.0.0.0"}},
		"every IPv6":  {"::", []string{"::1", "192.0.2.7", "host"}, []string{"::"}},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := Hosts(net.ParseIP(tc.bind), service, "host", local)
			for _, want := range tc.in {
				assert.True(t, slices.Contains(hosts, want), "%s is missing in %v", want, hosts)
			}
			for _, not := range tc.out {
				assert.True(t, !slices.Contains(hosts, not), "%s is in %v", not, hosts)
			}
		})
	}
}

// TestAddressesComeAndGo checks that an address which the host gets while Drover runs is added to the
// certificate, and that one which goes stays in it until the renewal.
func TestAddressesComeAndGo(t *testing.T) {
	s, clock := newStore(t)
	ensure(t, s)
	for _, c := range []struct {
		name       string
		now        []string
		wants, not []string
		renewed    []string
		after      time.Duration
	}{
		{"it got one", []string{"192.0.2.7"}, []string{"192.0.2.7"}, nil, []string{servingFile}, 0},
		{"it got another one", []string{"192.0.2.7", "2001:db8::1"}, []string{"192.0.2.7", "2001:db8::1"}, nil, []string{servingFile}, 0},
		{"it lost one", []string{"2001:db8::1"}, []string{"192.0.2.7", "2001:db8::1"}, nil, nil, 0},
		{"it got the lost one back", []string{"192.0.2.7", "2001:db8::1"}, nil, nil, nil, 0},
		{"it lost one, and others are new", []string{"192.0.2.7", "192.0.2.8"}, []string{"2001:db8::1", "192.0.2.8"}, nil, []string{servingFile}, 0},
		{"the renewal", []string{"192.0.2.8"}, []string{"192.0.2.8"}, []string{"192.0.2.7", "2001:db8::1"}, leavesOnly, leafLife},
	} {
		s.Hosts = hostsWith(c.now...)
		clock.Step(c.after)
		renewed := ensure(t, s)
		assert.True(t, slices.Equal(renewed, c.renewed), "%s: renewed %v, want %v", c.name, renewed, c.renewed)
		have := hostsOf(keyPair(t, s.Serving()).Leaf)
		for _, host := range c.wants {
			assert.True(t, slices.Contains(have, host), "%s: %s is missing in %v", c.name, host, have)
		}
		for _, host := range c.not {
			assert.True(t, !slices.Contains(have, host), "%s: %s is in %v", c.name, host, have)
		}
	}
}

// TestFlappingAddresses checks that a certificate has a bound, whatever addresses a host gets, and
// covers those of now as far as they are fewer.
func TestFlappingAddresses(t *testing.T) {
	s, _ := newStore(t)
	address := func(n int) string { return fmt.Sprintf("198.18.%d.%d", n/256, n%256) }
	for n := range maxHosts {
		s.Hosts = hostsWith(address(2*n), address(2*n+1))
		_, err := s.Ensure()
		assert.NoError(t, err)
		have := hostsOf(keyPair(t, s.Serving()).Leaf)
		assert.Require(t, len(have) <= maxHosts && slices.Contains(have, address(2*n)) && slices.Contains(have, address(2*n+1)),
			"after %d changes the certificate has %d hosts, want at most %d and those of now: %v", n, len(have), maxHosts, have)
	}
	var many []string
	for n := range 2 * maxHosts {
		many = append(many, address(n))
	}
	s.Hosts = hostsWith(many...)
	_, err := s.Ensure()
	assert.NoError(t, err)
	slices.Reverse(many)
	s.Hosts = hostsWith(many...)
	renewed, err := s.Ensure()
	assert.True(t, err == nil && len(renewed) == 0, "of a host with more addresses than fit, renewed %v, %v once more", renewed, err)
	have := hostsOf(keyPair(t, s.Serving()).Leaf)
	assert.True(t, len(have) <= maxHosts && slices.Contains(have, "localhost"),
		"of a host with more addresses than fit, the certificate has %d: %v", len(have), have)
}

// TestHostnames checks that a name which no certificate can have keeps none from being issued.
func TestHostnames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"host": true, "Big_Host.example": true, "": false, "ho st": false, "höst": false, "a..b": false, "(none)": false} {
		hosts := Hosts(net.IPv4zero, net.IPv4(10, 0, 0, 1), name, nil)
		assert.Equal(t, fmt.Sprintf("%q in %q", name, hosts), slices.Contains(hosts, name), want)
	}
}

func TestSplit(t *testing.T) {
	s, _ := newStore(t)
	ensure(t, s)
	cert, key, err := Split(s.Admin())
	assert.NoError(t, err)
	assert.True(t, !bytes.Contains(cert, []byte("PRIVATE")) && !bytes.Contains(key, []byte("CERTIFICATE")), "certificate and key are not apart")
	assert.ReportError(t, assert.ErrorOf(tls.X509KeyPair(cert, key)))
}

// startRenewal runs RenewPeriodically; each value on the channel is one check.
func startRenewal(t *testing.T, s *Store) (looks <-chan []string, ended <-chan error) {
	t.Helper()
	took, end := make(chan []string), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		end <- s.RenewPeriodically(ctx, func(renewed []string, err error) {
			assert.ReportError(t, err)
			took <- renewed
		})
	}()
	return took, end
}

// step moves the clock once RenewPeriodically waits for it.
func step(t *testing.T, clock *clocktesting.FakeClock, duration time.Duration) {
	t.Helper()
	assert.Eventually(t, "RenewPeriodically waits", func(testing.TB) error {
		return assert.ErrorUnless(clock.HasWaiters(), "it does not")
	})
	clock.Step(duration)
}

func TestRenewPeriodically(t *testing.T) {
	s, clock := newStore(t)
	ensure(t, s)
	looks, _ := startRenewal(t, s)
	step(t, clock, CheckPeriod)
	renewed := <-looks
	assert.True(t, len(renewed) == 0, "renewed %v immediately", renewed)
	step(t, clock, leafLife)
	renewed = <-looks
	assert.True(t, slices.Equal(renewed, leavesOnly), "renewed %v a year later", renewed)
	assertServes(t, s)
}

func TestRenewPeriodicallyEndsWithANewCA(t *testing.T) {
	s, clock := newStore(t)
	ensure(t, s)
	looks, ended := startRenewal(t, s)
	step(t, clock, 2*caLife)
	<-looks
	assert.ErrorIs(t, "the end", <-ended, ErrNewCA)
}
