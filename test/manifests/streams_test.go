// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testStreams checks that the controller serves streams and publishes their address, and that a user without any
// right finds the address, and may use a stream once bound to a role.
func testStreams(t *testing.T, w *testenv.Environment) {
	w.CreateActiveVM(t, fakeVM("vm").Namespace("default"))

	for kind, create := range map[string]createUser{"reader-by-token": tokenUser, "reader-by-certificate": certificateUser} {
		config, subject := create(t, w, kind)
		w.Bind(t, metav1.NamespaceDefault, "view", subject)
		assert.Eventually(t, "the "+kind+" reads the log", func(t testing.TB) error { return readLog(t, config) })
	}
}

// readLog finds the address as users do, and reads the log of VirtualMachine vm from it.
func readLog(t testing.TB, user *rest.Config) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(user)
	assert.NoError(t, err)
	found, err := client.CoreV1().ConfigMaps(streams.ConfigMapNamespace).Get(t.Context(), streams.ConfigMapName, metav1.GetOptions{})
	assert.NoError(t, err)
	at := rest.CopyConfig(user)
	at.Host, at.CAFile, at.CAData = found.Data[streams.AddressKey], "", []byte(found.Data[streams.CAKey])
	client, err = kubernetes.NewForConfig(at)
	assert.NoError(t, err)
	return client.CoreV1().RESTClient().Get().AbsPath(streams.Path(metav1.NamespaceDefault, "vm", streams.Log)).Do(t.Context()).Error()
}

// TestStreamsRights checks that streams change no rights of the controller.
func TestStreamsRights(t *testing.T) {
	t.Parallel()
	assert.True(t, permissionsOf(t, renderComponent(t, "streams")) == permissionsOf(t, renderChart(t)), "streams change the rights of the controller")
}

// flagsOf returns the flags that a controller's arguments and environment variables set.
func flagsOf(t *testing.T, all []*unstructured.Unstructured) (flags []string) {
	t.Helper()
	container := controllerContainer(t, findObject(t, all, "Deployment"))
	for _, arg := range container["args"].([]any) {
		flags = append(flags, arg.(string))
	}
	for _, variable := range container["env"].([]any) {
		name, value := variable.(map[string]any)["name"].(string), variable.(map[string]any)["value"]
		name, ok := strings.CutPrefix(name, "DROVER_")
		if !ok {
			continue
		}
		name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		assert.True(t, app.NewCommand().Flag(name) != nil, "the controller lacks the flag --%s", name)
		flags = append(flags, fmt.Sprintf("--%s=%s", name, value))
	}
	return flags
}
