// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
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

// testStreams checks that the controller serves streams and publishes where; and that a user without any right
// finds that, and may use a stream once bound to a role.
func testStreams(t *testing.T, w *testenv.Environment) {
	w.CreateActiveVM(t, fakeVM("vm").Namespace("default"))

	for kind, create := range map[string]createUser{"reader-by-token": tokenUser, "reader-by-certificate": certificateUser} {
		config, subject := create(t, w, kind)
		w.Bind(t, metav1.NamespaceDefault, "view", subject)
		assert.Eventually(t, "the "+kind+" reads the log", func(t testing.TB) error { return readLog(t, config) })
	}
}

// readLog finds the address as users do, and reads the log of VirtualMachine vm there.
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

// TestStreamsComponent checks that the component of kustomize and the chart's values serve
// streams in the same way, and that both change nothing else.
func TestStreamsComponent(t *testing.T) {
	t.Parallel()
	fromConfig := renderComponent(t, "streams")
	fromChart := renderChart(t, "--set", "streams.enabled=true,streams.certSecret=drover-streams-tls")
	for _, kind := range []string{"Service", "NetworkPolicy"} {
		a, b := findObject(t, fromConfig, kind, "drover-streams"), findObject(t, fromChart, kind, "drover-streams")
		if kind == "Service" {
			unstructured.RemoveNestedField(b.Object, "spec", "type") // the default
		}
		assertSameRules(t, kind, fieldAt(t, a, "spec"), fieldAt(t, b, "spec"))
	}
	a, b := controllerContainer(t, findObject(t, fromConfig, "Deployment")), controllerContainer(t, findObject(t, fromChart, "Deployment"))
	ports := func(container map[string]any) []any {
		return slices.SortedFunc(slices.Values(container["ports"].([]any)), func(a, b any) int {
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
	}
	assertSameRules(t, "ports", ports(a), ports(b))
	checkSameFlags(t, fromConfig, fromChart)
	if plain := permissionsOf(t, renderChart(t)); permissionsOf(t, fromConfig) != plain || permissionsOf(t, fromChart) != plain {
		t.Error("streams change the rights of the controller")
	}
}

// checkSameFlags checks that the chart's controller has the flags that the arguments and variables of
// another set, and some more.
func checkSameFlags(t *testing.T, fromConfig, fromChart []*unstructured.Unstructured, more ...string) {
	t.Helper()
	container := controllerContainer(t, findObject(t, fromConfig, "Deployment"))
	flags := append(flagsOfVariables(t, container), more...)
	for _, arg := range container["args"].([]any) {
		flags = append(flags, arg.(string))
	}
	args := fmt.Sprint(controllerContainer(t, findObject(t, fromChart, "Deployment"))["args"])
	for _, flag := range flags {
		if !strings.Contains(args, flag) {
			t.Errorf("the chart has %s, want %s", args, flag)
		}
	}
}

// flagsOfVariables returns the flags that a container's variables set.
func flagsOfVariables(t *testing.T, container map[string]any) (flags []string) {
	t.Helper()
	for _, variable := range container["env"].([]any) {
		name, value := variable.(map[string]any)["name"].(string), variable.(map[string]any)["value"]
		name, ok := strings.CutPrefix(name, "DROVER_")
		if !ok {
			continue
		}
		name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		if app.NewCommand().Flag(name) == nil {
			t.Errorf("the controller has no flag --%s", name)
		}
		flags = append(flags, fmt.Sprintf("--%s=%s", name, value))
	}
	return flags
}
