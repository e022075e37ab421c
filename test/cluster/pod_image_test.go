// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// testWebImage boots a guest from an image on a web server that pods reach. First the checksum is
// wrong, so that the machine does not start.
func testWebImage(t *testing.T, w *podWorld) {
	disk := framework.BuildBootGuest(t, t.TempDir(), "W", false)
	content, err := os.ReadFile(disk)
	assert.NoError(t, err)
	checksum := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	url := serveFile(t, disk)
	g := w.create(t, w.newVM("fetched", "100m", "32Mi").RestartPolicy(api.RestartNever).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image, spec.Ephemeral = &api.Image{Source: url, Checksum: "sha256:" + strings.Repeat("0", 64)}, true
	}))
	assert.Eventually(t, "an event says why it does not start", func(t testing.TB) error {
		events, err := shared.Client.CoreV1().Events(podNamespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + g.name})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "NotStarted") && strings.Contains(e.Message, "its checksum is "+checksum) {
				return nil
			}
		}
		return fmt.Errorf("the events are %v", events.Items)
	})
	g.patch(t, fmt.Sprintf(`{"spec":{"image":{"checksum":%q}}}`, checksum))
	assert.Eventually(t, "the guest boots", func(t testing.TB) error {
		pod, err := g.findPod(t)
		if err != nil || pod == nil {
			return fmt.Errorf("there is no pod: %w", err)
		}
		log, err := shared.PodLog(t.Context(), pod.Namespace, pod.Name)
		if err == nil && !strings.Contains(log, "drover guest 1 W") {
			err = fmt.Errorf("it shows %q", log)
		}
		return err
	})
	g.waitFor(t, func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(vm.Status.Server != nil && vm.Status.Server.ImageID == checksum, "the server is %+v, want image %s", vm.Status.Server, checksum)
	})
}

// serveFile serves a file at an address that pods reach, and returns its URL.
func serveFile(t *testing.T, path string) string {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", net.JoinHostPort(shared.HostIP(), "0"))
	assert.NoError(t, err)
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Shutdown(context.WithoutCancel(t.Context())) })
	return "http://" + listener.Addr().String() + "/disk.img?token=hunter2"
}
