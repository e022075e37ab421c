// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testStreams checks that the controller serves streams and publishes where; and that a user without any right
// finds that, and may use a stream once bound to a role.
func testStreams(t *testing.T, w *testenv.Environment) {
	w.CreateActiveVM(t, fakeVM("vm").Namespace("default"))

	for kind, create := range map[string]func(*testing.T, *testenv.Environment) *rest.Config{
		"token": func(t *testing.T, w *testenv.Environment) *rest.Config { return boundUser(t, w, tokenUser, "reader") },
		"certificate": func(t *testing.T, w *testenv.Environment) *rest.Config {
			return boundUser(t, w, certificateUser, "person")
		},
	} {
		user := create(t, w)
		assert.Eventually(t, "a user with a "+kind+" reads the log", func(t testing.TB) error {
			return readLog(t, user)
		})
	}
}

// boundUser returns a user who may view namespace default.
func boundUser(t *testing.T, w *testenv.Environment, create createUser, name string) *rest.Config {
	t.Helper()
	user, subject := create(t, w, name)
	args := []string{"create", "rolebinding", name, "--namespace=default", "--clusterrole=view", "--user=" + subject.Name}
	if subject.Namespace != "" {
		args[len(args)-1] = "--serviceaccount=" + subject.Namespace + ":" + subject.Name
	}
	framework.RunKubectl(t, w.Kubeconfig, args...)
	return user
}

// readLog finds the address as users do, and reads the log of VirtualMachine vm there.
func readLog(t testing.TB, user *rest.Config) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(user)
	if err != nil {
		return err
	}
	found, err := client.CoreV1().ConfigMaps(streams.ConfigMapNamespace).Get(t.Context(), streams.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	at := rest.CopyConfig(user)
	at.Host, at.CAFile, at.CAData = found.Data[streams.AddressKey], "", []byte(found.Data[streams.CAKey])
	transport, err := rest.HTTPClientFor(at)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.Host+streams.Path("default", "vm", streams.Log), http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	return nil
}

// writeStreamsCertificate writes the files of --streams-cert-dir.
func writeStreamsCertificate(t *testing.T) (dir string) {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	assert.NoError(t, err)
	dir = t.TempDir()
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// TestStreamsComponent checks that the component of kustomize and the chart's values serve
// streams in the same way, and that both change nothing else.
func TestStreamsComponent(t *testing.T) {
	t.Parallel()
	fromConfig := renderComponent(t, "streams")
	fromChart := renderChart(t, "--set", "streams.enabled=true,streams.certSecret=drover-streams-tls")
	for _, kind := range []string{"Service", "NetworkPolicy"} {
		a, b := findNamed(t, fromConfig, kind, "drover-streams"), findNamed(t, fromChart, kind, "drover-streams")
		if kind == "Service" {
			unstructured.RemoveNestedField(b.Object, "spec", "type") // the default
		}
		assertSameRules(t, kind, fieldAt(t, a, "spec"), fieldAt(t, b, "spec"))
	}
	a, b := controllerContainer(t, findObject(t, fromConfig, "Deployment")), controllerContainer(t, findObject(t, fromChart, "Deployment"))
	if got, want := portOf(t, a, "streams"), portOf(t, b, "streams"); got != want {
		t.Errorf("the ports are %v and %v", got, want)
	}
	args := fmt.Sprint(b["args"])
	for _, flag := range flagsOfVariables(t, a) {
		if !strings.Contains(args, flag) {
			t.Errorf("config/streams has %s, and the chart has %s", flag, args)
		}
	}
	if plain := permissionsOf(t, renderChart(t)); permissionsOf(t, fromConfig) != plain || permissionsOf(t, fromChart) != plain {
		t.Error("streams change the rights of the controller")
	}
}

// flagsOfVariables returns the flags that a container's variables set.
func flagsOfVariables(t *testing.T, container map[string]any) []string {
	t.Helper()
	var flags []string
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

// TestStreamsTrafficPolicy checks that a Service for users outside the cluster keeps their
// addresses, whose failures are counted.
func TestStreamsTrafficPolicy(t *testing.T) {
	t.Parallel()
	for serviceType, want := range map[string]any{"LoadBalancer": "Local", "NodePort": "Local", "ClusterIP": nil} {
		objects := renderChart(t, "--set", "streams.enabled=true,streams.certSecret=x,streams.service.type="+serviceType)
		if got := findNamed(t, objects, "Service", "drover-streams").Object["spec"].(map[string]any)["externalTrafficPolicy"]; got != want {
			t.Errorf("%s has the policy %v, want %v", serviceType, got, want)
		}
	}
}

func findNamed(t *testing.T, all []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range all {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func portOf(t *testing.T, container map[string]any, name string) any {
	t.Helper()
	for _, port := range container["ports"].([]any) {
		if p := port.(map[string]any); p["name"] == name {
			return p["containerPort"]
		}
	}
	t.Fatalf("there is no port %s: %v", name, container["ports"])
	return nil
}
