// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestScreen(t *testing.T) {
	t.Parallel()
	s := newScreen()
	for _, text := range []string{"c\n", "d\n"} {
		_, _ = io.WriteString(s, text)
	}
	s.putBefore([]byte("a\nb\nc\n")) // c was printed while both were read
	s.endWith(io.EOF)
	s.endWith(os.ErrClosed)
	text, err := io.ReadAll(s)
	assert.True(t, string(text) == "a\nb\nc\nd\n" && err == nil, "it shows %q and ends with %v", text, err)

	s = newScreen()
	for range 3 * screenSize / 1000 {
		_, _ = s.Write(bytes.Repeat([]byte{'x'}, 1000))
	}
	_, _ = s.Write([]byte("end"))
	assert.True(t, len(s.text) == screenSize && bytes.HasSuffix(s.text, []byte("xend")) && cap(s.text) <= 4*screenSize,
		"it keeps %d bytes, in a place for %d, want the last %d", len(s.text), cap(s.text), screenSize)
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 0}, {"", "a", 0}, {"abc", "cd", 1}, {"abc", "abcd", 3}, {"abc", "bd", 0}, {"aXa", "aXb", 1}, {"abab", "abab", 4}, {"xbar\n", "bar\nnext", 4}} {
		assert.Equal(t, fmt.Sprintf("%q and %q", c.a, c.b), overlapLength([]byte(c.a), []byte(c.b)), c.want)
	}
}

func TestRunBegin(t *testing.T) {
	t.Parallel()
	at := func(ms int) string {
		return time.Date(2026, 1, 1, 0, 0, 0, ms*int(time.Millisecond), time.UTC).Format(time.RFC3339Nano)
	}
	const never = "0001-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		status       container.ContainerState
		began, ended string
		policy       container.RestartPolicyMode
		before       time.Duration
		want         string
	}{
		"first run":             {"running", at(500), never, "", 0, ""},
		"started again":         {"running", at(500), at(100), "", 0, at(300)},
		"started again late":    {"paused", at(90_000), at(100), "", 0, at(89_000)},
		"stopped":               {"exited", at(500), at(900), "always", 0, at(400)},
		"stopped at its start":  {"exited", at(500), at(500), "always", 0, at(400)},
		"ended before it began": {"exited", at(500), at(480), "always", 0, at(380)},
		"ended job":             {"exited", at(9_000), at(9_001), "no", 0, ""},
		"ended job of no time":  {"exited", at(9_000), at(8_999), "no", 0, ""},
		"ended job of later":    {"exited", at(11_000), at(11_001), "no", 0, at(10_900)},
		"job started again":     {"running", at(500), at(100), "no", 0, at(300)},
		"ended second run":      {"exited", at(9_000), at(9_001), "no", time.Second, at(8_000)},
		"ended soon again":      {"exited", at(9_000), at(9_001), "always", 8800 * time.Millisecond, at(8_900)},
	} {
		of := inspected{Created: at(0), HostConfig: &container.HostConfig{RestartPolicy: container.RestartPolicy{Name: c.policy}}, State: &container.State{Status: c.status, StartedAt: c.began, FinishedAt: c.ended}}
		access := New(Options{PreviousEnd: func(string) time.Time {
			if c.before == 0 {
				return time.Time{}
			}
			return engine.ParseTime(at(0)).Add(c.before)
		}})
		assert.Equal(t, name, formatTime(access.runBegin(of)), c.want)
	}
}

func TestSkipLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		text string
		skip int64
		want int64 // lines in all
		rest string
	}{
		{"", 5, 0, ""},
		{"a\nb\nc", 0, 3, "a\nb\nc"},
		{"a\nb\nc", 2, 3, "c"},
		{"a\nb\nc", 9, 3, ""},
		{"a\n\n\n", 9, 3, ""},
		{long + "\n" + long, 1, 2, long},
		{long, 9, 1, ""},
	} {
		n, countErr := countLines(strings.NewReader(c.text))
		r := strings.NewReader(c.text)
		err := skipLines(r, c.skip)
		rest, _ := io.ReadAll(r)
		assert.True(t, errors.Join(countErr, err) == nil && n == c.want && string(rest) == c.rest, "%.20q: has %d lines, %v; after %d of them, %v, %.20q is left", c.text, n, countErr, c.skip, err, rest)
	}
}

// TestFrames checks that each stream is read as the engine has sent it, and that a cut or bad frame is an error.
func TestFrames(t *testing.T) {
	t.Parallel()
	frame := func(stream byte, text string) string {
		return string(binary.BigEndian.AppendUint32([]byte{stream, 0, 0, 0}, uint32(len(text)))) + text //nolint:gosec // a short text
	}
	long := strings.Repeat("long", 5000)
	for name, c := range map[string]struct {
		sent           string
		isRaw          bool
		stdout, stderr string
		want           string // in the error
	}{
		"nothing":        {},
		"both":           {sent: frame(1, "a") + frame(2, "b") + frame(1, "") + frame(0, "c") + frame(2, long), stdout: "ac", stderr: "b" + long},
		"terminal":       {sent: frame(1, "a"), isRaw: true, stdout: frame(1, "a")},
		"cut header":     {sent: frame(1, "a") + "\x01\x00", stdout: "a", want: "unexpected EOF"},
		"cut frame":      {sent: frame(2, long)[:100], stderr: long[:92], want: "unexpected EOF"},
		"engine's error": {sent: frame(1, "a") + frame(3, "no log"), stdout: "a", want: "no log"},
		"unknown stream": {sent: frame(4, "a"), want: "stream 4"},
	} {
		var stdout, stderr strings.Builder
		err := terminal.CopySplit(&stdout, &stderr, newFrames(iotest.OneByteReader(strings.NewReader(c.sent)), c.isRaw))
		assert.Equal(t, name+": stdout", stdout.String(), c.stdout)
		assert.Equal(t, name+": stderr", stderr.String(), c.stderr)
		assert.ErrorSays(t, name, err, c.want)
	}
}

// TestRemoteHost checks that a socket or a loopback address, which may be forwarded from
// anywhere, is not taken for a host.
func TestRemoteHost(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"unix:///var/run/docker.sock": "", "npipe:////./pipe/docker_engine": "", "tcp://127.0.0.1:2375": "", "tcp://localhost:2375": "",
		"tcp://[::1]:2375": "", "tcp://0.0.0.0:2375": "", "tcp://docker.example.org:2376": "docker.example.org",
		"tcp://192.0.2.7:2376": "192.0.2.7", "https://[2001:db8::7]:2376": "2001:db8::7", "::": "",
	} {
		assert.Equal(t, address, remoteHost(address), want)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	ip := netip.MustParseAddr
	c := inspected{NetworkSettings: &container.NetworkSettings{
		Networks: map[string]*network.EndpointSettings{
			"b": {IPAddress: ip("172.18.0.2")}, "a": {IPAddress: ip("172.17.0.2"), GlobalIPv6Address: ip("2001:db8::2")}, "host": {}, "none": nil,
		},
		Ports: network.PortMap{
			network.MustParsePort("80/tcp"): {
				{HostIP: ip("0.0.0.0"), HostPort: "8080"}, {HostIP: ip("::"), HostPort: "8081"}, {HostIP: ip("172.17.0.1"), HostPort: "8082"}, {HostIP: ip("0.0.0.0")},
			},
			network.MustParsePort("80/udp"): {{HostIP: ip("0.0.0.0"), HostPort: "9090"}},
		},
	}}
	for name, check := range map[string]struct{ got, want []string }{
		"own":       {c.containerAddresses(80), []string{"172.17.0.2:80", "[2001:db8::2]:80", "172.18.0.2:80"}},
		"this host": {c.publishedAddresses(80, location{isContainerReachable: true, host: localhost, isThisHost: true}), []string{"127.0.0.1:8080", "[::1]:8081", "172.17.0.1:8082"}},
		// An address of the other host may be another machine's here.
		"other host": {c.publishedAddresses(80, location{host: "docker.example.org"}), []string{"docker.example.org:8080", "docker.example.org:8081"}},
		"desktop":    {c.publishedAddresses(80, location{host: localhost}), []string{"127.0.0.1:8080", "[::1]:8081"}},
		"unknown":    {c.publishedAddresses(80, location{isContainerReachable: true}), nil},
		"no port":    {c.publishedAddresses(81, location{host: localhost}), nil},
	} {
		assert.True(t, slices.Equal(check.got, check.want), "%s: got %v, want %v", name, check.got, check.want)
	}
}

// TestRoute has a container whose address cannot be reached, and one that refuses.
func TestRoute(t *testing.T) {
	t.Parallel()
	listener := framework.Listen(t, "tcp", "127.0.0.1:0")
	closed := framework.Listen(t, "tcp", "127.0.0.2:0")
	_ = closed.Close()
	const unreachable = "255.255.255.255:80"
	open, refusing := listener.Addr().String(), closed.Addr().String()
	for name, c := range map[string]struct {
		route route
		want  error
	}{
		"own":                        {route{direct: []string{open}}, nil},
		"second container address":   {route{direct: []string{refusing, open}}, nil},
		"published":                  {route{direct: []string{unreachable}, published: []string{open}}, nil},
		"published only":             {route{published: []string{open}}, nil},
		"refused, though published":  {route{direct: []string{refusing}, published: []string{open}}, driver.ErrRetry},
		"unreachable, not published": {route{direct: []string{unreachable}}, driver.ErrRetry},
		"nowhere":                    {route{}, driver.ErrInvalid},
	} {
		conn, err := c.route.dialServer(t.Context())
		assert.ErrorIs(t, name, err, c.want)
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestPlace has engines that say where they run. The container is not among the processes of
// this host.
func TestPlace(t *testing.T) {
	t.Parallel()
	name, err := os.Hostname()
	assert.NoError(t, err)
	e, err := engine.New("", clock.RealClock{})
	assert.NoError(t, err)
	here, err := e.Machine(t.Context())
	assert.Require(t, err == nil, "the tests need a Docker engine on this host, which hack/dockerd.sh installs and starts: %v", err)
	bridge := func(gateway string) inspected {
		return inspected{State: &container.State{}, NetworkSettings: &container.NetworkSettings{Networks: map[string]*network.EndpointSettings{"bridge": {Gateway: netip.MustParseAddr(gateway)}}}}
	}
	for label, c := range map[string]struct {
		name, system string
		gateway      string
		want         location
		refused      bool
	}{
		"this host":                {name, here.OperatingSystem, "127.0.0.1", location{isContainerReachable: true, host: localhost, isThisHost: true}, false},
		"this host, other network": {name, here.OperatingSystem, "203.0.113.1", location{isContainerReachable: true}, false},
		"other host":               {name + "2", here.OperatingSystem, "127.0.0.1", location{}, true},
		"Docker Desktop":           {"docker-desktop", "Docker Desktop", "127.0.0.1", location{host: localhost}, false},
	} {
		info := fmt.Sprintf(`{"Name": %q, "OperatingSystem": %q, "KernelVersion": %q, "MemTotal": %d}`, c.name, c.system, here.Kernel, here.Memory)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, info)
		}))
		e, err := engine.New(strings.Replace(server.URL, "http", "tcp", 1), clock.RealClock{})
		assert.NoError(t, err)
		got, err := New(Options{Engine: e}).locateContainer(t.Context(), bridge(c.gateway))
		assert.True(t, got == c.want && errors.Is(err, driver.ErrInvalid) == c.refused, "%s: got %+v, %v, want %+v", label, got, err, c.want)
		server.Close()
	}
}
