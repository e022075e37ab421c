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
	// networkWithin is how long the figures of a network may take. The rest of explain's output does not need them.
	networkWithin = 2 * time.Second
	// maxStatistics limits the answer, in bytes.
	maxStatistics = 64 << 10
)

// readNetwork returns the figures of a VM's network. It returns nil if the driver has none, if there is no answer in time,
// or if the user may not read them.
func readNetwork(ctx context.Context, o *kit.Options, vm *api.VirtualMachine) *streamsapi.NetworkStatistics {
	driver := vms.DriverOf(vm)
	if vm.Status.Server == nil || (driver != vms.DriverQEMU && driver != vms.DriverPod) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, networkWithin)
	defer cancel()
	config, err := o.RESTConfig()
	if err != nil {
		return nil
	}
	client, err := streams.Discover(ctx, config)
	if err != nil || (driver == vms.DriverPod && !client.Serves(driver)) {
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
		return nil // a server of an earlier version answers with interfaces
	}
	return &n
}

// refusalTexts say why a network has refused something.
var refusalTexts = map[string]string{
	"Denied":    "no connections are allowed there (--qemu-egress-denied, or the node of a pod)",
	"NoEgress":  "the operator allows connections to other machines alone (--qemu-egress)",
	"Special":   "it is an address for special use, which no machine reaches",
	"NoRoute":   "the host lacks a route to another host there; the host itself is closed to machines",
	"NoMachine": "there is no other machine of this namespace there",
	"TooMany":   "the machine has too many connections",
	"NoAnswer":  "no answer, or a refusal, came from there",
}

// networkTexts describes the traffic of a network, and then what was refused, the latest first.
func networkTexts(n *streamsapi.NetworkStatistics, now time.Time) []string {
	size := func(bytes int64) string {
		return bytesText(float64(bytes), resource.Quantity{Format: resource.BinarySI}) + "B"
	}
	texts := []string{fmt.Sprintf("It received %s (%s) and sent %s (%s); open: %s, %s of UDP.",
		size(n.BytesIn), servers.Count(int(n.PacketsIn), "packet"), size(n.BytesOut), servers.Count(int(n.PacketsOut), "packet"),
		servers.Count(int(n.Connections), "connection"), servers.Count(int(n.Flows), "flow"))}
	if n.Dropped > 0 {
		texts = append(texts, fmt.Sprintf("Dropped: %s, broken or with addresses that it does not have.", servers.Count(int(n.Dropped), "packet")))
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

func writeNetwork(b *strings.Builder, s kit.Screen, n *streamsapi.NetworkStatistics, now time.Time) {
	if n == nil {
		return
	}
	fmt.Fprintf(b, "\n%s\n", s.Paint("Network:", kit.Bold))
	for _, text := range networkTexts(n, now) {
		writeIndented(b, s, "  ", text)
	}
}
