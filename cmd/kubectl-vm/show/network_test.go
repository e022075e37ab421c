// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
)

// TestNetworkOfExplain checks that explain says what a machine's network has carried and refused, and that it says
// the rest where that cannot be had.
func TestNetworkOfExplain(t *testing.T) {
	t.Parallel()
	statistics := streamsapi.NetworkStatistics{
		BytesIn: 3 << 20, PacketsIn: 2100, BytesOut: 312, PacketsOut: 1, Connections: 1, Dropped: 2, Refused: 18,
		LastRefused: []streamsapi.NetworkRefusal{
			{Protocol: "dns", Target: "a\x1b[2J.example", Reason: "OfALaterVersion", Count: 1, Last: kittest.Now.Add(-time.Hour)},
			{Protocol: "tcp", Target: "10.0.0.5:22", Reason: "Denied", Count: 14, Last: kittest.Now.Add(-3 * time.Second)},
		},
	}
	all := []string{
		"Network:\n", "received 3.00MiB (2100 packets) and sent 312B (1 packet); open: 1 connection, 0 flows of UDP.", "Dropped: 2 packets of the VM,",
		"  tcp 10.0.0.5:22 refused 14 times, last 3s ago: no connections are allowed there (--qemu-egress-denied, or the node of a pod)\n  dns a?[2J.example refused once, last 60m ago: OfALaterVersion\n",
	}
	for name, tc := range map[string]struct {
		driver string
		answer func(w http.ResponseWriter, r *http.Request)
		want   []string
	}{
		"qemu":        {vms.DriverQEMU, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(statistics) }, all},
		"docker":      {"docker", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(statistics) }, nil},
		"not allowed": {vms.DriverQEMU, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, nil},
		"an earlier server": {vms.DriverQEMU, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode([]map[string]string{{"name": "eth0"}})
		}, nil},
		"no answer": {vms.DriverQEMU, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == streamsapi.Path("default", "web", streamsapi.Interfaces) && r.URL.RawQuery == "statistics=true":
					tc.answer(w, r)
				case strings.Contains(r.URL.Path, "/configmaps/"):
					_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{streamsapi.AddressKey: ""}})
				default:
					_ = json.NewEncoder(w).Encode(corev1.EventList{})
				}
			}))
			t.Cleanup(server.Close)
			vm := kittest.NewVM(api.PhaseActive, api.ReasonRunning, metav1.ConditionTrue).Status(func(s *api.VirtualMachineStatus) {
				s.Driver, s.Server = tc.driver, &api.ServerStatus{ID: "1"}
			}).Obj()
			vm.Namespace = "default"
			o, out := kittest.NewOptions()
			o.Config.APIServer = &server.URL
			assert.ErrorIs(t, "explain", assert.ErrorOf(ExplainVM(t.Context(), o, vm)), nil)
			got := out.String()
			assert.True(t, strings.Contains(got, "web is ready") && (tc.want != nil || !strings.Contains(got, "Network")), "it says\n%s", got)
			for _, want := range tc.want {
				assert.True(t, strings.Contains(got, want), "it does not say %q:\n%s", want, got)
			}
		})
	}
}
