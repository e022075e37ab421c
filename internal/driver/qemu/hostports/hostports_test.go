// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// host acts as a host that has some ports taken and offers others in turn.
type host struct {
	taken  []int32
	offers []int32
}

func (h *host) open(_ context.Context, f Forward) (*os.File, int32, error) {
	switch {
	case slices.Contains(h.taken, f.HostPort):
		return nil, 0, errors.New("address already in use")
	case f.HostPort != 0:
		return nil, f.HostPort, nil
	case len(h.offers) == 0:
		return nil, 0, errors.New("none is left")
	}
	next := h.offers[0]
	h.offers = h.offers[1:]
	return nil, next, nil
}

func TestOpenForwards(t *testing.T) {
	t.Parallel()
	any80, fixed80 := driver.Port{Name: "http", Protocol: "TCP", Port: 80}, driver.Port{Name: "http", Protocol: "TCP", Port: 80, HostPort: 8080}
	any81, dns := driver.Port{Name: "more", Port: 81}, driver.Port{Name: "dns", Protocol: "UDP", Port: 53}
	had := func(protocol string, hostPort, port int32) Forward {
		return Forward{Protocol: protocol, HostPort: hostPort, Port: port, Chosen: true}
	}
	asked := Forward{Protocol: "tcp", HostPort: 8080, Port: 80}
	on := func(ip string, p driver.Port) driver.Port { p.HostIP = ip; return p }
	at := func(ip string, f Forward) Forward { f.HostIP = ip; return f }
	for name, c := range map[string]struct {
		ports  []driver.Port
		before []Forward
		serves bool
		host   host
		want   []Forward
		kept   int
		says   string
	}{
		"none":                             {},
		"asked for":                        {ports: []driver.Port{fixed80}, want: []Forward{asked}},
		"asked for and taken":              {ports: []driver.Port{any81, fixed80}, host: host{taken: []int32{8080}}, says: "ports[1] (http): host port 8080/tcp is not available"},
		"chosen":                           {ports: []driver.Port{any80, dns}, host: host{offers: []int32{1, 2}}, want: []Forward{had("tcp", 1, 80), had("udp", 2, 53)}},
		"chosen and none left":             {ports: []driver.Port{any80}, says: "none is left"},
		"the same again":                   {ports: []driver.Port{any80, dns}, before: []Forward{had("udp", 7, 53), had("tcp", 8, 80)}, want: []Forward{had("tcp", 8, 80), had("udp", 7, 53)}},
		"another if that is taken":         {ports: []driver.Port{any80}, before: []Forward{had("tcp", 8, 80)}, host: host{taken: []int32{8}, offers: []int32{9}}, want: []Forward{had("tcp", 9, 80)}},
		"one that another port had":        {ports: []driver.Port{any81}, before: []Forward{had("tcp", 8, 80)}, host: host{offers: []int32{9}}, want: []Forward{had("tcp", 9, 81)}},
		"a fixed one that is not kept":     {ports: []driver.Port{any80}, before: []Forward{asked}, host: host{offers: []int32{9}}, want: []Forward{had("tcp", 9, 80)}},
		"one that is asked for now":        {ports: []driver.Port{any81, fixed80}, before: []Forward{had("tcp", 8080, 81)}, host: host{offers: []int32{8080, 9}}, want: []Forward{had("tcp", 9, 81), asked}},
		"one on two addresses":             {ports: []driver.Port{on("10.0.0.1", any80), on("10.0.0.2", any81)}, host: host{offers: []int32{7, 7}}, want: []Forward{at("10.0.0.1", had("tcp", 7, 80)), at("10.0.0.2", had("tcp", 7, 81))}},
		"not one on all and on another":    {ports: []driver.Port{any80, on("10.0.0.2", any81)}, host: host{offers: []int32{7, 7, 8}}, want: []Forward{had("tcp", 7, 80), at("10.0.0.2", had("tcp", 8, 81))}},
		"not one on 0.0.0.0 and another":   {ports: []driver.Port{on("0.0.0.0", any80), on("10.0.0.2", any81)}, host: host{offers: []int32{7, 7, 8}}, want: []Forward{had("tcp", 7, 80), at("10.0.0.2", had("tcp", 8, 81))}},
		"one is served already":            {ports: []driver.Port{any80, any81}, before: []Forward{had("tcp", 7, 80)}, serves: true, host: host{taken: []int32{7}, offers: []int32{8}}, want: []Forward{had("tcp", 7, 80), had("tcp", 8, 81)}, kept: 1},
		"one that is served moves":         {ports: []driver.Port{fixed80}, before: []Forward{had("tcp", 7, 80)}, serves: true, want: []Forward{asked}},
		"one that is served for another":   {ports: []driver.Port{any80, {Name: "more", Port: 81, HostPort: 7}}, before: []Forward{had("tcp", 7, 80)}, serves: true, says: "ports[1] (more): host port 7/tcp is not available"},
		"two for one, each keeps its port": {ports: []driver.Port{any80, any80}, before: []Forward{had("tcp", 7, 80), had("tcp", 8, 80)}, want: []Forward{had("tcp", 7, 80), had("tcp", 8, 80)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, sockets, err := OpenForwards(t.Context(), c.ports, c.before, c.serves, c.host.open)
			if c.says != "" {
				wantRetry(t, err, c.says, driver.ReasonPortConflict)
			} else if err != nil || !slices.Equal(got, c.want) || len(sockets) != len(c.want)-c.kept {
				t.Errorf("got %+v with %d sockets, %v, want %+v, of which %d stay", got, len(sockets), err, c.want, c.kept)
			}
		})
	}
}

// TestHostPortsRange checks that machines get ports of the range only, each another one,
// and none where all are taken.
func TestHostPortsRange(t *testing.T) {
	t.Parallel()
	held := framework.Listen(t, "tcp4", "0.0.0.0:0")
	first := framework.PortOf(held)
	h, err := Parse(fmt.Sprintf("%d-%d", first, first+2))
	assert.NoError(t, err)
	ports := []driver.Port{{Port: 80}, {Port: 81}}
	got, sockets, err := OpenForwards(t.Context(), ports, nil, false, h.Open)
	if err != nil { // another program of this host may have them
		t.Skip("the ports beside one that is free are taken: ", err)
	}
	sockets.Close()
	for _, f := range got {
		assert.True(t, (f.HostPort == first+1 || f.HostPort == first+2) && got[0].HostPort != got[1].HostPort,
			"got %+v of %s, the first of which is taken", got, h.text)
	}
	_, _, err = OpenForwards(t.Context(), append(ports, driver.Port{Port: 82}), nil, false, h.Open)
	wantRetry(t, err, "ports[2]", "is free", driver.ReasonPortConflict)

	only, err := Parse(fmt.Sprint(first))
	assert.NoError(t, err)
	_, _, err = OpenForwards(t.Context(), ports[:1], nil, false, only.Open)
	wantRetry(t, err, fmt.Sprintf("none of %d (--qemu-host-ports) is free", first))
	// A port from before the flag is not taken again.
	before := []Forward{{Protocol: "tcp", HostPort: 1, Port: 80, Chosen: true}}
	_, _, err = OpenForwards(t.Context(), ports[:1], before, false, only.Open)
	wantRetry(t, err, "is free")
}

func TestHostAddress(t *testing.T) {
	t.Parallel()
	var a Address
	first := a.Current(time.Unix(0, 0))
	ip := net.ParseIP(first)
	assert.True(t, ip != nil && ip.To4() != nil, "it is %q, want an IPv4 address", first)
	a.text = "10.9.8.7"
	assert.Equal(t, "it was looked up again", a.Current(time.Unix(0, 0).Add(addressTTL-1)), "10.9.8.7")
	assert.Equal(t, "it was not looked up again", a.Current(time.Unix(0, 0).Add(addressTTL)), first)
}

func TestParseHostPorts(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct{ has, lacks []int32 }{
		"":                  {[]int32{1, 80, 65535}, nil},
		"80":                {[]int32{80}, []int32{79, 81}},
		"30000-32767":       {[]int32{30000, 32767}, []int32{29999, 32768, 80}},
		"80, 443,1000-1001": {[]int32{80, 443, 1000, 1001}, []int32{81, 999, 1002}},
	} {
		h, err := Parse(text)
		assert.NoError(t, err)
		for _, port := range c.has {
			assert.True(t, h.hasPort(port), "%q lacks %d", text, port)
		}
		for _, port := range c.lacks {
			assert.True(t, !h.hasPort(port), "%q has %d", text, port)
		}
	}
	for _, text := range []string{"0", "x", "80-", "-80", "90-80", "65536", "80,,81", ","} {
		assert.ErrorSays(t, text, assert.ErrorOf(Parse(text)), fmt.Sprintf("--qemu-host-ports is %q", text))
	}
}

// wantRetry checks text, reason and kind of an error.
func wantRetry(t *testing.T, err error, says ...string) {
	t.Helper()
	assert.Require(t, errors.Is(err, driver.ErrRetry), "got the error %v, want the kind %q", err, driver.ErrRetry)
	for _, text := range says {
		assert.True(t, strings.Contains(err.Error()+" "+driver.ReasonOf(err), text),
			"got the error %q with reason %q, want %q in it", err, driver.ReasonOf(err), text)
	}
}
