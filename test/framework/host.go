// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// RequireRoot skips a test that only root can run.
func RequireRoot(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can " + why)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	return string(content)
}

// EditJSON changes a file of JSON like an editor that writes a new one and moves it into place.
func EditJSON[T any](t testing.TB, path string, change func(*T)) {
	t.Helper()
	var v T
	assert.NoError(t, json.Unmarshal([]byte(ReadFile(t, path)), &v))
	change(&v)
	content, err := json.Marshal(v)
	assert.NoError(t, errors.Join(err, os.WriteFile(path+"~", content, 0o600), os.Rename(path+"~", path)))
}

// Listen listens until the test ends.
func Listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// PortOf returns the port of a listener.
func PortOf(l net.Listener) int32 { return int32(l.Addr().(*net.TCPAddr).Port) } //nolint:gosec // 16 bits

var networks atomic.Int32

// NewNetwork makes a network namespace, as a pod has one, that this host reaches at an address. Each
// package has another second byte for its addresses, 18 or 19.
func NewNetwork(t testing.TB, second int) (name, address string) {
	t.Helper()
	RequireRoot(t, "make a network namespace")
	index, pid := int(networks.Add(1)), os.Getpid()
	at := func(last int) string { return fmt.Sprintf("198.%d.%d.%d", second, pid%256, 4*index+last) }
	name, address = fmt.Sprintf("d%d-%d-%d", second, pid, index), at(2)
	link := name + "h"
	t.Cleanup(func() { _ = exec.CommandContext(context.Background(), "ip", "netns", "del", name).Run() })
	for _, command := range []string{
		"netns add " + name,
		"link add " + link + " type veth peer name eth0 netns " + name,
		"addr add " + at(1) + "/30 dev " + link, "link set " + link + " up",
		"-n " + name + " addr add " + address + "/30 dev eth0",
		"-n " + name + " link set eth0 up", "-n " + name + " link set lo up",
	} {
		MustRunCommand(t, CommandTimeout, nil, "ip", strings.Fields(command)...)
	}
	return name, address
}
