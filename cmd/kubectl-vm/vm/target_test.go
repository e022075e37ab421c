// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

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
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestWhoServesPods checks that Drover serves the streams of a pod if Drover says so, and otherwise the API server.
// A stream that only Drover could serve is refused with the reason why Drover does not serve it.
func TestWhoServesPods(t *testing.T) {
	t.Parallel()
	vm := kittest.NewPodVM()
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
		o, _ := kittest.NewOptions()
		o.Config.APIServer, o.Config.Impersonate = &server.URL, &tc.as
		log, err := FindTarget(t.Context(), o, "web", streamsapi.Log)
		assert.NoError(t, err)
		got := log.Client.URL("default", "web", streamsapi.Log, url.Values{}).Path
		assert.True(t, strings.HasSuffix(tc.path, got), "%s: its log is at %s, want %s", name, got, tc.path)
		assert.ErrorSays(t, name, assert.ErrorOf(FindTarget(t.Context(), o, "web", streamsapi.Exec)), tc.exec)
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
		_, err := newPodClient("kubectl vm", nil, kittest.NewPodVM(), stream)
		for _, want := range all {
			assert.ErrorSays(t, string(stream), err, want)
		}
	}
}
