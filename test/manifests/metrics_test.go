// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestFlagsExist checks that the program has the pod's flags: a pod with an unknown
// flag would never start.
func TestFlagsExist(t *testing.T) {
	all := "docker.host=tcp://engine.example:2376,docker.tlsSecret=engine,metrics.certSecret=metrics,extraArgs={--threads=4}"
	for name, deployment := range map[string]*unstructured.Unstructured{
		"charts/drover":              findObject(t, renderChart(t), "Deployment"),
		"charts/drover, much set":    findObject(t, renderChart(t, "--set", all), "Deployment"),
		"charts/drover, no metrics":  findObject(t, renderChart(t, "--set", "metrics.enabled=false"), "Deployment"),
		"config/static-pod, the pod": readPod(t),
	} {
		t.Run(name, func(t *testing.T) {
			args, _ := controllerContainer(t, deployment)["args"].([]any)
			var flags []string
			for _, arg := range args {
				flags = append(flags, arg.(string))
			}
			err := app.NewCommand().ParseFlags(flags)
			assert.True(t, err == nil && len(flags) >= 5, "%q: error %v", flags, err)
		})
	}
}

// readPod returns the static pod as the template of a Deployment.
func readPod(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(staticPod)
	assert.NoError(t, err)
	pod := decodeObjects(t, string(text))[0]
	return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": pod.Object}}}
}

// testMetrics checks that metrics require an authorised token and HTTPS.
func testMetrics(t *testing.T, w *testenv.Environment, addr string) {
	scraperUser, subject := w.NewAccount(t, namespace, "scraper")
	strangerUser, _ := w.NewAccount(t, namespace, "stranger")
	w.Bind(t, "", "drover-metrics-reader", subject)
	scraper, stranger := scraperUser.BearerToken, strangerUser.BearerToken

	checkAnswers(t, "https://"+addr, scraper, http.StatusOK, "drover_")
	checkAnswers(t, "https://"+addr, stranger, http.StatusForbidden, "stranger")
	checkAnswers(t, "https://"+addr, "", http.StatusUnauthorized, "")
	// This is how controller-runtime answers an invalid token.
	checkAnswers(t, "https://"+addr, "no token at all", http.StatusInternalServerError, "Authentication failed")
	// The server answers plain HTTP with an error, or closes the connection.
	code, body, err := requestMetrics(t, "http://"+addr, scraper)
	assert.True(t, err != nil || code == http.StatusBadRequest, "the answer to HTTP is %d: %.200s", code, body)
}

// checkAnswers requests metrics until the answer is the expected one: the controller needs time
// to start, and caches a refusal for half a minute.
func checkAnswers(t *testing.T, url, token string, code int, text string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%s answers %d", url, code), func(t testing.TB) error {
		got, body, err := requestMetrics(t, url, token)
		if err == nil && (got != code || !strings.Contains(body, text)) {
			return fmt.Errorf("the answer is %d: %.200s", got, body)
		}
		return err
	})
}

// requestMetrics sends one request for metrics.
func requestMetrics(t testing.TB, url, token string) (code int, body string, err error) {
	t.Helper()
	isSelfSigned := rest.TLSClientConfig{Insecure: strings.HasPrefix(url, "https:")}
	client, err := rest.HTTPClientFor(&rest.Config{BearerToken: token, TLSClientConfig: isSelfSigned})
	assert.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", http.NoBody)
	assert.NoError(t, err)
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	return res.StatusCode, string(all), err
}
