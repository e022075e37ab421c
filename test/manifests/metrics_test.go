// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestFlagsExist checks that the program has the pod's flags: a pod with an unknown
// flag would never start.
func TestFlagsExist(t *testing.T) {
	all := "docker.host=tcp://engine.example:2376,docker.tlsSecret=engine,metrics.certSecret=metrics,extraArgs={--threads=4}"
	for name, render := range map[string]func() *unstructured.Unstructured{
		"config/default": func() *unstructured.Unstructured {
			return findObject(t, renderKustomization(t, "default"), "Deployment")
		},
		"charts/drover":           func() *unstructured.Unstructured { return findObject(t, renderChart(t), "Deployment") },
		"charts/drover, much set": func() *unstructured.Unstructured { return findObject(t, renderChart(t, "--set", all), "Deployment") },
		"charts/drover, no metrics": func() *unstructured.Unstructured {
			return findObject(t, renderChart(t, "--set", "metrics.enabled=false"), "Deployment")
		},
		"config/static-pod, the pod": func() *unstructured.Unstructured { return readPod(t) },
	} {
		t.Run(name, func(t *testing.T) {
			args, _ := controllerContainer(t, render())["args"].([]any)
			var flags []string
			for _, arg := range args {
				flags = append(flags, arg.(string))
			}
			if err := app.NewCommand().ParseFlags(flags); err != nil || len(flags) < 5 {
				t.Errorf("%q: error %v", flags, err)
			}
		})
	}
}

// readPod returns the static pod as if it were a Deployment's.
func readPod(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(staticPod)
	assert.NoError(t, err)
	pod := decodeObjects(t, string(text))[0]
	return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": pod.Object}}}
}

// testMetrics checks that metrics need an authorised token and HTTPS.
func testMetrics(t *testing.T, w *testenv.Environment, addr string) {
	scraper, stranger := newAccount(t, w, "scraper"), newAccount(t, w, "stranger")
	framework.RunKubectl(t, w.Kubeconfig, "create", "clusterrolebinding", "drover-metrics",
		"--clusterrole", "drover-metrics-reader", "--serviceaccount", namespace+":scraper")

	checkAnswers(t, "https://"+addr, scraper, http.StatusOK, "drover_")
	checkAnswers(t, "https://"+addr, stranger, http.StatusForbidden, "stranger")
	checkAnswers(t, "https://"+addr, "", http.StatusUnauthorized, "")
	// controller-runtime answers in this way to an invalid token.
	checkAnswers(t, "https://"+addr, "no token at all", http.StatusInternalServerError, "Authentication failed")
	// What answers to HTTP here is an error, or the line cut.
	if code, body, err := requestMetrics(t, "http://"+addr, scraper); err == nil && code != http.StatusBadRequest {
		t.Errorf("by HTTP it answers %d: %.200s", code, body)
	}
}

// newAccount makes a ServiceAccount and returns a token of it.
func newAccount(t *testing.T, w *testenv.Environment, name string) string {
	t.Helper()
	made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := w.KubeClient.CoreV1().ServiceAccounts(namespace).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return w.RequestToken(t, namespace, name)
}

// checkAnswers requests metrics until the answer is the expected one: the program takes a
// moment to start, and caches a refusal for half a minute.
func checkAnswers(t *testing.T, url, token string, code int, text string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%s answers %d", url, code), func(t testing.TB) error {
		got, body, err := requestMetrics(t, url, token)
		if err == nil && (got != code || !strings.Contains(body, text)) {
			return fmt.Errorf("it answers %d: %.200s", got, body)
		}
		return err
	})
}

// requestMetrics sends one request for metrics.
func requestMetrics(t testing.TB, url, token string) (code int, body string, err error) {
	t.Helper()
	asker := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // it signs its certificate itself
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := asker.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), err
}
