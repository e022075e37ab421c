// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubectl/pkg/util/podutils"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	if options := os.Getenv(childEnv); options != "" {
		os.Exit(runChild(options))
	}
	os.Exit(cluster.RunTests(m, &shared, cluster.Options{Nodes: 3}))
}

// runPod runs a pod with a web server on a node, until the end of the test. The pod is not evicted
// when its node is lost.
func runPod(t *testing.T, name string, node *cluster.Node) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testLabel(t)},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "probe", Image: cluster.ProbeImage, Command: []string{"/probe", "serve"},
			}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, TerminationGracePeriodSeconds: new(int64),
		},
	}
	if node != nil {
		pod.Spec.NodeName = node.Name
	}
	return createReadyPod(t, pod)
}

// createReadyPod creates a pod, waits until it is Ready, and deletes it at the end of the test.
func createReadyPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pods := shared.Client.CoreV1().Pods(namespaceOf(pod))
	assert.NoError(t, assert.ErrorOf(pods.Create(t.Context(), pod, metav1.CreateOptions{})))
	t.Cleanup(func() { deletePod(t, pod) })
	return waitForPod(t, pod)
}

func namespaceOf(pod *corev1.Pod) string { return cmp.Or(pod.Namespace, metav1.NamespaceDefault) }

// waitForPod waits until a pod is Ready, and returns its object.
func waitForPod(t *testing.T, pod *corev1.Pod) (ready *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, pod.Name+" is Ready", func(t testing.TB) (err error) {
		ready, err = shared.Client.CoreV1().Pods(namespaceOf(pod)).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && !podutils.IsPodReady(ready) {
			err = fmt.Errorf("the status is %+v", ready.Status)
		}
		return err
	})
	return ready
}

// testLabel is the label of a test's pods.
func testLabel(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"test": strings.ReplaceAll(t.Name(), "/", ".")}
}

func deletePod(t *testing.T, pod *corev1.Pod) {
	ctx := context.WithoutCancel(t.Context())
	pods := shared.Client.CoreV1().Pods(namespaceOf(pod))
	assert.Eventually(t, pod.Name+" is gone", func(testing.TB) error {
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod is still being deleted: %w", err)
		}
		return nil
	})
}

func waitForNode(t *testing.T, node *cluster.Node, ready bool) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%s is Ready: %t", node.Name, ready), func(t testing.TB) error {
		is, err := node.IsReady(t.Context())
		if err == nil && is != ready {
			err = fmt.Errorf("it is Ready: %t", is)
		}
		return err
	})
}

// get requests a URL from a pod, and returns the answer.
func get(t *testing.T, pod, url string) string {
	t.Helper()
	var out string
	assert.Eventually(t, pod+" gets "+url, func(t testing.TB) (err error) {
		out, err = shared.Exec(t.Context(), metav1.NamespaceDefault, pod, "/probe", "get", url)
		return err
	})
	return strings.TrimSpace(out)
}

// isServed returns an error unless a pod accepts connections of the host.
func isServed(t testing.TB, pod *corev1.Pod) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(pod.Status.PodIP, "8080"))
	if err != nil {
		return err
	}
	return conn.Close()
}

// createService creates a Service for pods with a label, until the end of the test.
func createService(t *testing.T, namespace, name string, selector map[string]string, port int32) *corev1.Service {
	t.Helper()
	services := shared.Client.CoreV1().Services(namespace)
	service, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}}},
	}, metav1.CreateOptions{})
	assert.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, services.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	return service
}

// TestPods checks that pods of all nodes reach each other, Services, the API and the host,
// and that the API and the host reach them.
func TestPods(t *testing.T) {
	var pods []*corev1.Pod
	for _, node := range shared.Nodes() {
		pods = append(pods, runPod(t, "pods-"+node.Name, node))
	}
	service := createService(t, metav1.NamespaceDefault, "pods", testLabel(t), 8080)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(shared.HostIP(), "0"))
	assert.NoError(t, err)
	host := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("host")) }))
	host.Listener = listener
	host.Start()
	t.Cleanup(host.Close)
	for i, pod := range pods {
		next := pods[(i+1)%len(pods)]
		for url, want := range map[string]string{
			"http://" + next.Status.PodIP + ":8080": next.Name,
			"http://" + service.Spec.ClusterIP:      "pods-",
			"https://10.96.0.1/version":             "gitVersion",
			host.URL:                                "host",
		} {
			got := get(t, pod.Name, url)
			assert.True(t, strings.Contains(got, want), "%s got %q from %s, want %q", pod.Name, got, url, want)
		}
		if log, err := shared.PodLog(t.Context(), metav1.NamespaceDefault, pod.Name); err != nil || !strings.Contains(log, "serving") {
			t.Errorf("log of %s: %q, %v", pod.Name, log, err)
		}
		assert.ErrorIs(t, "the host does not reach "+pod.Name, isServed(t, pod), nil)
	}
}
