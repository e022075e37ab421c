// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
)

func TestParsePort(t *testing.T) {
	tests := map[string]api.Port{
		"80":                         {Port: 80},
		"8080:80":                    {HostPort: 8080, Port: 80},
		":80":                        {Port: 80},
		"53/udp":                     {Port: 53, Protocol: api.ProtocolUDP},
		"53:53/UDP":                  {HostPort: 53, Port: 53, Protocol: api.ProtocolUDP},
		"ssh=2222:22":                {Name: "ssh", HostPort: 2222, Port: 22},
		"127.0.0.1:2222:22":          {HostIP: "127.0.0.1", HostPort: 2222, Port: 22},
		"127.0.0.1::22":              {HostIP: "127.0.0.1", Port: 22},
		"[::1]:2222:22/tcp":          {HostIP: "::1", HostPort: 2222, Port: 22},
		"[0:0:0:0:0:0:0:1]:2222:22":  {HostIP: "::1", HostPort: 2222, Port: 22},
		"[::ffff:127.0.0.1]:2222:22": {HostIP: "127.0.0.1", HostPort: 2222, Port: 22},
		"x=[2001:db8::1]:80:8/udp":   {Name: "x", HostIP: "2001:db8::1", HostPort: 80, Port: 8, Protocol: api.ProtocolUDP},
		"65535:1":                    {HostPort: 65535, Port: 1},
	}
	for text, want := range tests {
		if want.Protocol == "" {
			want.Protocol = api.ProtocolTCP
		}
		got, err := parsePort(text)
		if err != nil || got != want {
			t.Errorf("%q is %+v and %v, want %+v", text, got, err, want)
			continue
		}
		again, err := parsePort(strings.TrimPrefix(want.Name+"="+vms.PortText(got.HostIP, got.HostPort, got.Port, got.Protocol), "="))
		assert.True(t, err == nil && again == want, "%q is printed as something else: %+v and %v", text, again, err)
	}
	for _, text := range []string{"", "0", "65536", "-1", "a", "80:", "1:2:3:4", "nope:80:80", "80/sctp", "::1:80:80", "80/tcp/udp", "1.2.3:80:80", "[::1]80:80", "x=", " 80"} {
		if p, err := parsePort(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, p)
		} else if !strings.Contains(err.Error(), "for example") {
			t.Errorf("the error about %q does not say what is allowed: %v", text, err)
		}
	}
}

func TestAddPorts(t *testing.T) {
	have := []api.Port{{Name: "tcp-80", Port: 80, Protocol: api.ProtocolTCP}}
	got, err := AddPorts(have, []string{"8080:80", "80/udp", "web=443", "9090:80"})
	assert.NoError(t, err)
	assert.Equal(t, "the names", portNames(got), "tcp-80 tcp-80-8080 udp-80 web tcp-80-9090")
	assert.True(t, len(have) == 1, "the VM's list was changed")
	for _, text := range []string{"80", "tcp-80=81", "x"} {
		if _, err := AddPorts(have, []string{text}); err == nil {
			t.Errorf("%q was added", text)
		}
	}
}

func TestFreePortNameIsFree(t *testing.T) {
	have := []api.Port{{Name: "tcp-80", Port: 1}, {Name: "tcp-80-n2", Port: 2}}
	got := freePortName(have, api.Port{Protocol: api.ProtocolTCP, Port: 80})
	assert.True(t, got == "tcp-80-n3", "got %s", got)
}

func TestRemovePorts(t *testing.T) {
	have := []api.Port{
		{Name: "web", HostPort: 8080, Port: 80, Protocol: api.ProtocolTCP},
		{Name: "alt", HostPort: 8081, Port: 80, Protocol: api.ProtocolTCP},
		{Name: "dns", Port: 53, Protocol: api.ProtocolUDP},
		{Name: "8", Port: 9, Protocol: api.ProtocolTCP},
	}
	tests := map[string]string{
		"web":           "alt dns 8",
		"8081:80":       "web dns 8",
		"53/udp":        "web alt 8",
		"8":             "web alt dns", // a name comes before a number
		"9":             "web alt dns",
		"web dns":       "alt 8",
		"8080:80 alt 8": "dns",
	}
	for texts, want := range tests {
		left, removed, err := RemovePorts(have, strings.Fields(texts))
		assert.True(t, err == nil && portNames(left) == want && len(left)+len(removed) == len(have),
			"without %s, %s are left, and %v; want %s", texts, portNames(left), err, want)
	}
	for texts, want := range map[string]string{"80": "has 2 such ports", "53": "does not have this port", "nope": "for example", "web web": "no such port"} {
		_, _, err := RemovePorts(have, strings.Fields(texts))
		if texts == "web web" { // its name is not shown as a port any more
			want = "is not a number"
		}
		assert.ErrorSays(t, "without "+texts, err, want)
	}
	_, _, err := RemovePorts(nil, []string{"80"})
	assert.True(t, err != nil, "a port of a VM without ports was removed")
}

func portNames(ports []api.Port) string {
	names := make([]string, len(ports))
	for i, p := range ports {
		names[i] = p.Name
	}
	return strings.Join(names, " ")
}
