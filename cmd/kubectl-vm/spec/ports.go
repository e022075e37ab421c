// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// portSyntax describes the format of a port in flags and arguments.
const portSyntax = "[NAME=][HOSTIP:][HOSTPORT:]PORT[/udp], for example 80, 8080:80, ssh=127.0.0.1:2222:22 or 53:53/udp"

// parsePort parses a port in the format portSyntax. The name of the port may be empty.
func parsePort(text string) (api.Port, error) {
	p := api.Port{Protocol: api.ProtocolTCP}
	rest := text
	if name, after, hasName := strings.Cut(text, "="); hasName {
		p.Name, rest = name, after
	}
	rest, protocol, _ := strings.Cut(rest, "/")
	var err error
	if p.Protocol, err = parseProtocol(protocol); err != nil {
		return p, portError(text, err)
	}
	numbers, err := cutHostIP(rest, &p)
	if err != nil {
		return p, portError(text, err)
	}
	hostPort, port, hasHostPort := strings.Cut(numbers, ":")
	if !hasHostPort {
		hostPort, port = "", numbers
	}
	if p.Port, err = parsePortNumber(port); err != nil {
		return p, portError(text, err)
	}
	if hostPort != "" {
		if p.HostPort, err = parsePortNumber(hostPort); err != nil {
			return p, portError(text, err)
		}
	}
	return p, nil
}

func portError(text string, err error) error {
	return fmt.Errorf("port %q: %w; a port is %s", text, err, portSyntax)
}

func parseProtocol(text string) (api.Protocol, error) {
	switch strings.ToLower(text) {
	case "", "tcp":
		return api.ProtocolTCP, nil
	case "udp":
		return api.ProtocolUDP, nil
	}
	return "", fmt.Errorf("protocol %q is not tcp or udp", text)
}

// cutHostIP sets the address of the host, if text begins with one, and returns the rest of text.
func cutHostIP(text string, p *api.Port) (string, error) {
	host, rest := "", text
	if inBrackets, after, ok := strings.Cut(text, "]:"); ok && strings.HasPrefix(text, "[") {
		host, rest = inBrackets[1:], after
	} else if strings.Count(text, ":") == 2 {
		host, rest, _ = strings.Cut(text, ":")
	}
	if host == "" {
		return rest, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "", fmt.Errorf("%q is not an IP address", host)
	}
	p.HostIP = ip.Unmap().String()
	return rest, nil
}

func parsePortNumber(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a number from 1 to 65535", text)
	}
	return int32(n), nil
}

// AddPorts returns the ports of a VM with further ports. It gives each new port without a name a name.
func AddPorts(have []api.Port, texts []string) ([]api.Port, error) {
	all := slices.Clone(have)
	for _, text := range texts {
		next, err := parsePort(text)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(all, func(p api.Port) bool { return isSamePort(p, next) }); i >= 0 {
			return nil, fmt.Errorf("port %q: the VM already has this port, as %s", text, NamedPortText(all[i]))
		}
		if next.Name == "" {
			next.Name = freePortName(all, next)
		} else if i := indexOfPort(all, next.Name); i >= 0 {
			return nil, fmt.Errorf("port %q: the name %s is in use for %s", text, next.Name, NamedPortText(all[i]))
		}
		all = append(all, next)
	}
	return all, nil
}

// isSamePort reports whether two ports are equal, apart from their names.
func isSamePort(a, b api.Port) bool {
	a.Name = b.Name
	return a == b
}

func indexOfPort(ports []api.Port, name string) int {
	return slices.IndexFunc(ports, func(p api.Port) bool { return p.Name == name })
}

// freePortName returns a name for a port without a name: tcp-80, or tcp-80-8080 if tcp-80 is in use.
func freePortName(have []api.Port, p api.Port) string {
	name := fmt.Sprintf("%s-%d", strings.ToLower(string(p.Protocol)), p.Port)
	if indexOfPort(have, name) >= 0 && p.HostPort != 0 {
		name = fmt.Sprintf("%s-%d", name, p.HostPort)
	}
	free := name
	for n := 2; indexOfPort(have, free) >= 0; n++ {
		free = fmt.Sprintf("%s-n%d", name, n)
	}
	return free
}

// NamedPortText returns a port of a spec with its name.
func NamedPortText(p api.Port) string {
	return p.Name + " " + vms.PortText(p.HostIP, p.HostPort, p.Port, p.Protocol)
}

// RemovePorts returns the ports of a VM without some ports. A text names a port by its name, by its number, or
// in the format portSyntax.
func RemovePorts(have []api.Port, texts []string) (left, removed []api.Port, err error) {
	left = slices.Clone(have)
	for _, text := range texts {
		i, err := findPort(left, text)
		if err != nil {
			return nil, nil, err
		}
		removed = append(removed, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return left, removed, nil
}

func findPort(ports []api.Port, text string) (int, error) {
	if i := indexOfPort(ports, text); i >= 0 {
		return i, nil
	}
	want, err := parsePort(text)
	if err != nil {
		return 0, err
	}
	var found []int
	for i, p := range ports {
		if p.Port == want.Port && p.Protocol == want.Protocol && (want.HostPort == 0 || p.HostPort == want.HostPort) && (want.HostIP == "" || p.HostIP == want.HostIP) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return 0, fmt.Errorf("port %q: the VM has %d such ports: name one of %s", text, len(found), specPortsText(ports))
	case len(ports) == 0:
		return 0, errors.New("the VM does not have ports")
	}
	return 0, fmt.Errorf("port %q: the VM does not have this port, but has %s", text, specPortsText(ports))
}

func specPortsText(ports []api.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = NamedPortText(p)
	}
	return strings.Join(texts, ", ")
}
