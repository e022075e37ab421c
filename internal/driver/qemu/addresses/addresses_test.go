// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestPool checks that machines get different addresses, the same again, and addresses of machines that are gone.
func TestPool(t *testing.T) {
	t.Parallel()
	gone := map[types.UID]bool{}
	p := &Pool{Range: netip.MustParsePrefix("10.1.2.0/29"), Dir: t.TempDir(), IsGone: func(uid types.UID) bool { return gone[uid] }}
	taken := map[netip.Prefix]types.UID{}
	const size = 5
	for n := range size {
		uid := types.UID(fmt.Sprint("machine-", n))
		address, err := p.Take(uid, netip.Prefix{})
		assert.NoError(t, err)
		again, err := p.Take(uid, address)
		assert.NoError(t, err)
		lost, err := p.Take(uid, netip.Prefix{}) // as after a crash before it was recorded
		assert.NoError(t, err)
		other, isTaken := taken[address]
		assert.True(t, !isTaken && again == address && lost == address, "%s has %s, then %s and %s; %q has it", uid, address, again, lost, other)
		taken[address] = uid
	}
	for _, special := range []string{"10.1.2.0", "10.1.2.1", "10.1.2.7"} {
		uid, ok := taken[netip.PrefixFrom(netip.MustParseAddr(special), 29)]
		assert.True(t, !ok, "%s has %s, which a machine must not have", uid, special)
	}
	assert.ErrorIs(t, "one too many", assert.ErrorOf(p.Take("another", netip.Prefix{})), driver.ErrRetry, "all 5 addresses of 10.1.2.0/29")
	gone["machine-3"] = true
	address, err := p.Take("another", netip.Prefix{})
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("another has %s, which is of", address), taken[address], "machine-3")
	p.Release("machine-3", address.Addr()) // which it no longer has
	again, err := p.Take("another", netip.Prefix{})
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("another has %s and then", address), again, address)
}

// TestParseRange lists which ranges are refused.
func TestParseRange(t *testing.T) {
	t.Parallel()
	assert.NoError(t, assert.ErrorOf(parseRange("10.213.0.0/16")))
	for _, text := range []string{"", "x", "10.213.0.0", "10.213.0.1/16", "10.0.0.0/4", "10.0.0.0/30", "8.8.0.0/16", "fd00::/64", "127.0.0.0/8"} {
		assert.ErrorSays(t, text, assert.ErrorOf(parseRange(text)), fmt.Sprintf("--qemu-network is %q", text))
	}
}

// TestRoutes lists which routes of the host refuse a range.
func TestRoutes(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "make a network namespace")
	for route, want := range map[string]string{
		"":                                  "",
		"default dev lo":                    "",
		"0.0.0.0/1 dev lo":                  "", // of a VPN, in place of a default route
		"10.214.0.0/16 dev lo":              "",
		"10.212.0.0/16 dev lo":              "",
		"blackhole 10.0.0.0/8":              "",
		"10.213.5.0/24 dev lo":              "this host has a route to 10.213.5.0/24 by lo: choose",
		"10.213.7.7 dev lo":                 "a route to 10.213.7.7/32 by lo",
		"10.0.0.0/8 dev lo":                 "a route to 10.0.0.0/8 by lo",
		"10.213.0.0/16 dev lo table 77":     "a route to 10.213.0.0/16 by lo",
		"local 10.213.9.0/24 dev lo":        "a route to 10.213.9.0/24 by lo",
		"10.208.0.0/12 dev lo metric 50000": "--qemu-network is 10.213.0.0/16, and this host has a route to 10.208.0.0/12",
	} {
		err := inNewNetwork(t, route, func() error { return assert.ErrorOf(parseRange("10.213.0.0/16")) })
		if want == "" {
			assert.ErrorIs(t, route, err, nil)
		} else {
			assert.ErrorSays(t, route, err, want)
		}
	}
}

// TestChooseRange checks which range an empty flag means: one that the host does not use, and that machines have already.
func TestChooseRange(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "make a network namespace")
	taken := t.TempDir()
	for _, address := range []string{"10.214.0.7", "172.29.0.7", "172.29.0.8"} {
		assert.NoError(t, os.Symlink("some UID", filepath.Join(taken, address)))
	}
	for name, c := range map[string]struct{ route, dir, want string }{
		"nothing is used":           {"", "missing", "10.213.0.0/16"},
		"the first is used":         {"10.213.0.0/16 dev lo", "missing", "10.214.0.0/16"},
		"all of 10.0.0.0/8 is used": {"10.0.0.0/8 dev lo", "missing", "172.29.0.0/16"},
		"only one is left":          {"0.0.0.0/2 dev lo", "missing", "172.29.0.0/16"},
		"most machines are there":   {"", taken, "172.29.0.0/16"},
		"the host came to use it":   {"172.16.0.0/12 dev lo", taken, "10.214.0.0/16"},
	} {
		var got netip.Prefix
		err := inNewNetwork(t, c.route, func() (err error) {
			got, err = ParseRange("", c.dir)
			return err
		})
		assert.True(t, err == nil && got.String() == c.want, "%s: it is %s, %v, want %s", name, got, err, c.want)
	}
}

// inNewNetwork makes a call in a new network namespace, which has a route.
func inNewNetwork(t *testing.T, route string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		commands := []string{"link set lo up"}
		if route != "" {
			commands = append(commands, "route add "+route)
		}
		for _, command := range commands {
			if out, runErr := exec.CommandContext(t.Context(), "ip", strings.Fields(command)...).CombinedOutput(); err == nil && runErr != nil {
				err = fmt.Errorf("ip %s: %w: %s", command, runErr, out)
			}
		}
		if err == nil {
			err = call()
		}
		done <- err
	}()
	return <-done
}
