// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/destinations"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestDestinations tries every way out of the guest of a pod, and in.
func TestDestinations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.newNode(t)
	engine := podtest.Engine{Cluster: shared, Kube: w.kube, Open: openWithStreams}
	destinations.Run(t, destinations.Harness{
		Open: func(t *testing.T, _ string, _ destinations.Egress) driver.Driver {
			t.Helper()
			return engine.Harness(driver.ServerSpec{}).Open(t, w.cluster)
		},
		IsMachine: true,
		PreparePod: func(t *testing.T, around destinations.Surroundings, spec *driver.ServerSpec) {
			t.Helper()
			n.HostIPs = around.Hosts
			connect(t, n, around)
			addPrograms(t, framework.BuildLinuxGuest(t, n.Image).Initrd, around.Prober)
			spec.Namespace, spec.RetainOnDelete, spec.MemoryBytes = w.namespace, true, 256<<20
			spec.Image = driver.Image{Source: "oci://registry.example/guest:1", Kernel: &driver.Kernel{
				Source: "/vmlinuz", Initrd: "/initrd", Cmdline: framework.GuestCmdline + " agent=honest serve=/bin/prober,serve," + spec.Args[0],
			}}
			spec.Args, spec.Ports = nil, spec.Ports[:3]
		},
	})
}

// connect has the network of pods lead to the other host by a separate link, and to all else by the node. The other
// host serves metadata too, and pods may send pings, as container runtimes allow.
func connect(t *testing.T, n *podtest.Node, around destinations.Surroundings) {
	t.Helper()
	const metadata = "169.254.169.254"
	in, out := "-n "+n.Network, "-n "+around.Network
	for _, command := range []string{
		"link add other netns " + n.Network + " type veth peer name other netns " + around.Network,
		in + " link set other up", out + " link set other up", out + " addr add " + metadata + " dev other",
		in + " route add " + around.Outside + " dev other", in + " route add " + metadata + " dev other",
		out + " route add " + n.Address + " dev other src " + around.Outside, in + " route add default via " + netip.MustParseAddr(n.Address).Prev().String(),
		"netns exec " + n.Network + " sysctl -q net.ipv4.ping_group_range=0\t2147483647",
	} {
		framework.MustRunCommand(t, framework.CommandTimeout, nil, "ip", strings.Split(command, " ")...)
	}
}

// addPrograms adds the prober and parts of BusyBox to the archive that a kernel unpacks, which may be one after another.
func addPrograms(t *testing.T, initrd, prober string) {
	t.Helper()
	dir := t.TempDir()
	pack, folder := filepath.Join(dir, "pack"), filepath.Join(dir, "root", "bin")
	busyBox, err := framework.BusyBox(t.Context())
	assert.NoError(t, errors.Join(err, framework.BuildStatic(pack, "hack/guest/pack"), os.MkdirAll(folder, 0o700)))
	for name, content := range map[string][]byte{"prober": []byte(framework.ReadFile(t, prober)), "sh": busyBox, "ip": busyBox} {
		assert.NoError(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	archive, _ := framework.MustRunCommand(t, framework.CommandTimeout, nil, pack, filepath.Dir(folder))
	assert.NoError(t, os.WriteFile(initrd, []byte(framework.ReadFile(t, initrd)+archive), 0o600))
}
