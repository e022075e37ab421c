// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	"cloudnative.tw/drover/test/assert"
)

// podVM returns a VM of driver pod that runs.
func podVM() *api.VirtualMachine {
	vm := vmWith(api.PhaseActive, api.ReasonRunning, "True").Obj()
	vm.Namespace, vm.UID = "blue", "1a2b3c4d-0000-4000-8000-000000000000"
	vm.Spec.Ports = []api.Port{{Name: "ssh", Port: 22, Protocol: api.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: api.ProtocolUDP}}
	vm.Status.Driver, vm.Status.Addresses = "pod", []string{"10.244.1.5"}
	vm.Status.Objects = []api.ServerObject{{Kind: "PersistentVolumeClaim", Name: "web-1a2b3c4d"}, {Kind: "Pod", Name: "web-1a2b3c4d"}}
	return vm
}

// TestPodPorts checks that the ports of a pod are shown where they answer, though the status does not
// list ports of a host for them.
func TestPodPorts(t *testing.T) {
	t.Parallel()
	vm := podVM()
	if got := portsText(vm); got != "ssh 10.244.1.5:22, dns 10.244.1.5:53/udp" {
		t.Errorf("show has %q", got)
	}
	if got := joinSome(portsOf(vm), mostPorts); got != "22,53/udp" {
		t.Errorf("list has %q", got)
	}
	vm.Status.PendingFields = []string{"ports"}
	if got := portsText(vm); !strings.HasSuffix(got, " (changed ones as of the next restart)") {
		t.Errorf("while they change, show has %q", got)
	}
	vm.Status.Addresses = nil
	if got := portsText(vm); got != "ssh 22 (not open), dns 53/udp (not open)" {
		t.Errorf("without an address, show has %q", got)
	}
	if got := joinSome(portsOf(vm), mostPorts); got != none {
		t.Errorf("without an address, list has %q", got)
	}
	other := podVM()
	other.Status.Driver = "docker"
	if got := portsText(other); !strings.Contains(got, "(not open)") {
		t.Errorf("show has %q for another driver", got)
	}
}

// TestWhoServesPods checks that the streams of a pod are Drover's if Drover says so, and else the API server's,
// and that what only Drover could serve is refused with the reason for which it does not.
func TestWhoServesPods(t *testing.T) {
	t.Parallel()
	vm := podVM()
	vm.TypeMeta = metav1.TypeMeta{APIVersion: api.SchemeGroupVersion.String(), Kind: "VirtualMachine"}
	secure := httptest.NewTLSServer(nil)
	t.Cleanup(secure.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	published := map[string]string{streamsapi.AddressKey: "https://drover.example", streamsapi.CAKey: ca, streamsapi.DriversKey: "docker,pod"}
	others, earlier := maps.Clone(published), maps.Clone(published)
	others[streamsapi.DriversKey] = "docker"
	delete(earlier, streamsapi.DriversKey)
	const pod = "/api/v1/namespaces/default/pods/web-1a2b3c4d/log"
	for name, tc := range map[string]struct {
		published map[string]string
		as        string
		path      string // of its log
		exec      string // the error
	}{
		"Drover serves pods":    {published, "", streamsapi.Path("default", "web", streamsapi.Log), ""},
		"it serves others":      {others, "", pod, "--pod-streams"},
		"an earlier version":    {earlier, "", pod, "--pod-streams"},
		"no streams":            {nil, "", pod, "--pod-streams"},
		"with an impersonation": {published, "ann", pod, "--as"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch isConfig := strings.Contains(r.URL.Path, "/configmaps/"); {
			case isConfig && tc.published == nil:
				http.NotFound(w, r)
			case isConfig:
				_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: tc.published})
			default:
				_ = json.NewEncoder(w).Encode(vm)
			}
		}))
		t.Cleanup(server.Close)
		o, _ := newOptions()
		o.Config.APIServer, o.Config.Impersonate = &server.URL, &tc.as
		log, err := findTarget(t.Context(), o, "web", streamsapi.Log)
		assert.NoError(t, err)
		if got := log.client.URL("default", "web", streamsapi.Log, url.Values{}).Path; !strings.HasSuffix(tc.path, got) {
			t.Errorf("%s: its log is at %s, want %s", name, got, tc.path)
		}
		assert.ErrorSays(t, name, assert.ErrorOf(findTarget(t.Context(), o, "web", streamsapi.Exec)), tc.exec)
	}
}

// TestRefusedStreamsOfPods checks that a stream that neither Drover nor the API server offers for a pod is
// refused with another way to do it.
func TestRefusedStreamsOfPods(t *testing.T) {
	t.Parallel()
	for stream, all := range map[streamsapi.Stream][]string{
		streamsapi.Interfaces: {"10.244.1.5", "  kubectl vm console web"},
		streamsapi.Exec:       {"kubectl vm ssh web", "  kubectl vm console web"},
	} {
		_, err := connectToPod("kubectl vm", nil, podVM(), stream)
		for _, want := range all {
			assert.ErrorSays(t, string(stream), err, want)
		}
	}
}

// TestUnlistedPortOfAPod checks that a port that a pod does not list is refused with the way to list it.
func TestUnlistedPortOfAPod(t *testing.T) {
	t.Parallel()
	err := checkPorts("kubectl vm", target{vm: podVM()}, []streams.Forward{{Remote: 22}, {Remote: 2022}})
	for _, want := range []string{"port 2022", "kubectl vm port add web 2022"} {
		assert.ErrorSays(t, "port-forward", err, want)
	}
}
