// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

const (
	// networkTimeout is how long explain waits for the statistics of a network. Its other output does not need them.
	networkTimeout = 2 * time.Second
	// maxStatistics is the largest answer, in bytes.
	maxStatistics = 64 << 10
)

// readNetwork returns the statistics of a VM's network. It returns nil if the driver does not have any, if no answer
// comes in time, or if the user may not read them.
func readNetwork(ctx context.Context, o *kit.Options, vm *api.VirtualMachine) *streamsapi.NetworkStatistics {
	driver := vms.DriverOf(vm)
	if vm.Status.Server == nil || (driver != vms.DriverQEMU && driver != vms.DriverPod) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	config, err := o.RESTConfig()
	if err != nil {
		return nil
	}
	client, err := streams.Discover(ctx, config)
	if err != nil || (driver == vms.DriverPod && !client.Serves(driver)) { // "drover up" serves qemu without a list of drivers
		return nil
	}
	defer client.Close()
	body, err := client.Get(ctx, vm.Namespace, vm.Name, streamsapi.Interfaces, url.Values{"statistics": {"true"}})
	if err != nil {
		return nil
	}
	defer func() { _ = body.Close() }()
	var n streamsapi.NetworkStatistics
	if json.NewDecoder(io.LimitReader(body, maxStatistics)).Decode(&n) != nil {
		return nil // an earlier version of Drover answers with a list of interfaces
	}
	return &n
}

// refusalTexts explain the reasons of refused connections.
var refusalTexts = map[string]string{
	"Denied":    "no connections are allowed there (--qemu-egress-denied, or the node of a pod)",
	"NoEgress":  "the operator allows connections only to other machines (--qemu-egress)",
	"Special":   "the address is for special use, and machines cannot reach it",
	"NoRoute":   "the host lacks a route to the address, or it is an address of the host, which machines cannot reach",
	"NoMachine": "no other machine of this namespace has the address",
	"TooMany":   "the machine has too many connections",
	"NoAnswer":  "the address did not answer, or refused the connection",
}

// networkTexts describes the traffic of a network, and then the refused connections, the latest first.
func networkTexts(n *streamsapi.NetworkStatistics, now time.Time) []string {
	binaryUnits := resource.Quantity{Format: resource.BinarySI} // Ki, Mi and so on
	size := func(bytes int64) string { return bytesText(float64(bytes), binaryUnits) + "B" }
	texts := []string{fmt.Sprintf("The VM received %s (%s) and sent %s (%s); open: %s, %s of UDP.",
		size(n.BytesIn), servers.Count(int(n.PacketsIn), "packet"), size(n.BytesOut), servers.Count(int(n.PacketsOut), "packet"),
		servers.Count(int(n.Connections), "connection"), servers.Count(int(n.Flows), "flow"))}
	if n.Dropped > 0 {
		texts = append(texts, fmt.Sprintf("Dropped: %s of the VM, broken or with addresses of others.", servers.Count(int(n.Dropped), "packet")))
	}
	for _, r := range slices.Backward(n.LastRefused) {
		times := "once"
		if r.Count > 1 {
			times = fmt.Sprintf("%d times", r.Count)
		}
		texts = append(texts, printable.Line(fmt.Sprintf("%s %s refused %s, last %s ago: %s", r.Protocol, r.Target, times, vms.AgeText(now, r.Last),
			cmp.Or(refusalTexts[r.Reason], r.Reason))))
	}
	return texts
}

func writeNetwork(b *strings.Builder, s kit.Terminal, n *streamsapi.NetworkStatistics, now time.Time) {
	if n == nil {
		return
	}
	fmt.Fprintf(b, "\n%s\n", s.Paint("Network:", kit.Bold))
	for _, text := range networkTexts(n, now) {
		writeIndented(b, s, "  ", text)
	}
}
