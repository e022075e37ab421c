// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
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

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/tier"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	if options := os.Getenv(childEnv); options != "" {
		os.Exit(runChild(options))
	}
	os.Exit(cluster.RunTests(m, &shared, cluster.Options{Nodes: 3}))
}

// runPod runs a pod that serves on a node, until the end of the test. It stays when the
// node is lost.
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
	name := pod.Name
	pods := shared.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deletePod(t, name) })
	assert.Eventually(t, name+" is Ready", func(t testing.TB) (err error) {
		pod, err = readyPod(t.Context(), name)
		return err
	})
	return pod
}

// testLabel is the label of a test's pods.
func testLabel(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"test": strings.ReplaceAll(t.Name(), "/", ".")}
}

func deletePod(t *testing.T, name string) {
	ctx := context.WithoutCancel(t.Context())
	pods := shared.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	assert.Eventually(t, name+" is gone", func(testing.TB) error {
		if _, err := pods.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

func readyPod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod, err := shared.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("%s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
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

// get is what a pod gets from a URL.
func get(t *testing.T, pod, url string) string {
	t.Helper()
	var out string
	assert.Eventually(t, pod+" gets "+url, func(t testing.TB) (err error) {
		out, err = shared.Exec(t.Context(), metav1.NamespaceDefault, pod, "/probe", "get", url)
		return err
	})
	return strings.TrimSpace(out)
}

// isServed reports whether a pod accepts connections of the host.
func isServed(t testing.TB, pod *corev1.Pod) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(pod.Status.PodIP, "8080"))
	if err != nil {
		return err
	}
	return conn.Close()
}

// newService makes a Service for the pods of a test.
func newService(t *testing.T, name string) *corev1.Service {
	t.Helper()
	services := shared.Client.CoreV1().Services(metav1.NamespaceDefault)
	service, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: testLabel(t),
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	assert.NoError(t, err)
	t.Cleanup(func() {
		if err := services.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
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
	service := newService(t, "pods")
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
			if got := get(t, pod.Name, url); !strings.Contains(got, want) {
				t.Errorf("%s got %q from %s, want %q", pod.Name, got, url, want)
			}
		}
		if log, err := shared.PodLog(t.Context(), metav1.NamespaceDefault, pod.Name); err != nil || !strings.Contains(log, "serving") {
			t.Errorf("log of %s: %q, %v", pod.Name, log, err)
		}
		if err := isServed(t, pod); err != nil {
			t.Errorf("the host does not reach %s: %v", pod.Name, err)
		}
	}
}

// checkSurvives checks that a pod's container is the one that it was.
func checkSurvives(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var again *corev1.Pod
	assert.Eventually(t, pod.Name+" is Ready", func(t testing.TB) (err error) {
		again, err = readyPod(t.Context(), pod.Name)
		return err
	})
	before, after := pod.Status.ContainerStatuses[0], again.Status.ContainerStatuses[0]
	if before.ContainerID != after.ContainerID || after.RestartCount != 0 {
		t.Errorf("the container was %s and is %s, restarted %d times", before.ContainerID, after.ContainerID, after.RestartCount)
	}
	assert.Eventually(t, pod.Name+" serves", func(t testing.TB) error { return isServed(t, again) })
}

// TestKubelet checks that containers go on without their kubelet, whether it was killed
// or suspended.
func TestKubelet(t *testing.T) {
	tier.Full(t, "it waits for nodes; it tests this cluster and nothing of Drover, whose TestPodDriver needs TestPods")
	node := shared.Node(1)
	pod := runPod(t, "kubelet", node)
	for _, step := range []struct{ lose, restore func() error }{
		{node.KillKubelet, node.StartKubelet},
		{node.StopKubelet, node.ContinueKubelet},
	} {
		assert.NoError(t, step.lose())
		waitForNode(t, node, false)
		if err := isServed(t, pod); err != nil {
			t.Errorf("the pod does not serve: %v", err)
		}
		assert.NoError(t, step.restore())
		waitForNode(t, node, true)
		checkSurvives(t, pod)
	}
}

func TestContainerd(t *testing.T) {
	tier.Full(t, "it waits for nodes; it tests this cluster and nothing of Drover, whose TestPodDriver needs TestPods")
	node := shared.Node(1)
	pod := runPod(t, "containerd", node)
	assert.NoError(t, node.KillContainerd())
	if err := isServed(t, pod); err != nil {
		t.Errorf("the pod does not serve: %v", err)
	}
	assert.NoError(t, node.StartContainerd())
	runPod(t, "containerd-next", node)
	checkSurvives(t, pod)
}

func TestAPIServer(t *testing.T) {
	tier.Full(t, "it waits for nodes; it tests this cluster and nothing of Drover, whose TestPodDriver needs TestPods")
	assert.NoError(t, shared.KillAPIServer())
	if _, err := shared.Node(1).IsReady(t.Context()); err == nil {
		t.Error("the API still answers")
	}
	assert.NoError(t, shared.StartAPIServer(t.Context()))
	for _, node := range shared.Nodes() {
		waitForNode(t, node, true)
	}
	runPod(t, "api", nil)
}
