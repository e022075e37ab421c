// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

const (
	monitoring = "monitoring"
	// blue is the namespace of the users.
	blue = "blue"

	streamsSecret = "drover-streams-tls"
	streamsPort   = "30944"
)

// TestAccess tests the servers of Drover, for metrics and for streams, in one deployment.
func TestAccess(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; TestAccount of test/manifests has the rights of users, metrics and Secrets")
	t.Parallel()
	d := New(t)
	d.CreateNamespace(t)
	for _, name := range []string{monitoring, blue} {
		d.kubectl(t, "create", "namespace", name)
	}
	address := net.JoinHostPort(d.Cluster.Node(1).IP, streamsPort)
	d.createStreamsSecret(t)
	assert.NoError(t, d.install("--set", "streams.enabled=true,streams.certSecret="+streamsSecret+",streams.url=https://"+address,
		"--set", "streams.service.type=NodePort,streams.service.nodePort="+streamsPort))
	t.Run("metrics", func(t *testing.T) { testMetrics(t, d) })
	t.Run("streams", func(t *testing.T) { testStreams(t, d) })
}

// createStreamsSecret creates the Secret of a certificate for all nodes.
func (d *Deployment) createStreamsSecret(t *testing.T) {
	t.Helper()
	var addresses []net.IP
	for _, node := range d.Cluster.Nodes() {
		addresses = append(addresses, net.ParseIP(node.IP))
	}
	certificate, key, err := certutil.GenerateSelfSignedCertKey("drover-streams."+namespace+".svc", addresses, nil)
	assert.NoError(t, err)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: streamsSecret},
		Data:       map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
	}
	_, err = d.Kube.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	assert.NoError(t, err)
}

// testMetrics reads the metrics of every replica.
func testMetrics(t *testing.T, d *Deployment) {
	d.kubectl(t, "-n", monitoring, "create", "serviceaccount", "prometheus")
	d.kubectl(t, "create", "clusterrolebinding", "drover-metrics", "--clusterrole", "drover-metrics-reader", "--serviceaccount", monitoring+":prometheus")
	prometheus := d.kubectl(t, "-n", monitoring, "create", "token", "prometheus")
	leading := 0
	for _, address := range d.waitForEndpoints(t, "drover-metrics") {
		url := "https://" + net.JoinHostPort(address, "8443") + "/metrics"
		text := getWithToken(t, url, prometheus)
		assert.Contains(t, url+" lacks metrics of Drover", text, "drover_")
		if strings.Contains(text, `leader_election_master_status{name="drover-controller"} 1`) {
			leading++
		}
	}
	assert.True(t, leading == 1, "by their metrics, %d replicas lead", leading)
}

// waitForEndpoints returns the addresses of a Service, one for each replica.
func (d *Deployment) waitForEndpoints(t *testing.T, service string) (addresses []string) {
	t.Helper()
	assert.Eventually(t, "endpoints of Service "+service, func(t testing.TB) error {
		slices, err := d.Kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return err
		}
		addresses = nil
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
					addresses = append(addresses, endpoint.Addresses...)
				}
			}
		}
		return assert.ErrorUnless(len(addresses) == replicas, "the addresses are %v", addresses)
	})
	return addresses
}

// getWithToken requests a URL with a token, which must be allowed, and returns the body.
func getWithToken(t *testing.T, url, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.CommandTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	assert.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	// The certificates of the replicas are self-signed.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	assert.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	assert.True(t, response.StatusCode == http.StatusOK, "%s answered %s: %.500s", url, response.Status, body)
	return string(body)
}

// testStreams uses streams from outside the cluster, with kubectl-vm.
func testStreams(t *testing.T, d *Deployment) {
	program := filepath.Join(t.TempDir(), "kubectl-vm")
	assert.NoError(t, framework.BuildProgram(program, "cmd/kubectl-vm"))
	editor, viewer := d.newAccount(t, program, "editor"), d.newAccount(t, program, "viewer")
	web := d.newUser("web", 0)
	web.VMs = d.VMs.CloudnativeV1alpha1().VirtualMachines(blue)
	d.createVM(t, web)
	// The only program in the image wants to listen at a port that the guest already uses.
	editor.run(t, 1, "address already in use", "exec", "web", "--", "/demo-guest")
	viewer.run(t, 1, "orbidden", "exec", "web", "--", "/demo-guest")
	viewer.run(t, 1, "orbidden", "console", "web")
	editor.run(t, 0, "the demo guest is up", "logs", "web")
	viewer.run(t, 0, "the demo guest is up", "logs", "web")
	checkReplicasServe(t, d, viewer)
	d.within(t, "deletion", web.DeleteVM)
	d.Judge(t)
}

// account is a user with a kubeconfig.
type account struct {
	program, kubeconfig, token string
}

// newAccount returns a ServiceAccount in namespace blue with a role of Drover there:
// drover-edit for editor, drover-view for viewer.
func (d *Deployment) newAccount(t *testing.T, program, name string) *account {
	t.Helper()
	role := strings.TrimSuffix(strings.TrimSuffix("drover-"+name, "or"), "er")
	d.kubectl(t, "-n", blue, "create", "serviceaccount", name)
	d.kubectl(t, "-n", blue, "create", "rolebinding", name, "--clusterrole", role, "--serviceaccount", blue+":"+name)
	token := d.kubectl(t, "-n", blue, "create", "token", name)
	a := &account{program: program, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), token: token}
	config := func(args ...string) {
		d.kubectl(t, append([]string{"config", "--kubeconfig", a.kubeconfig}, args...)...)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	writeFile(t, ca, d.Cluster.Config.CAData)
	config("set-cluster", "c", "--embed-certs", "--certificate-authority", ca, "--server", d.Cluster.Config.Host)
	config("set-credentials", name, "--token", token)
	config("set-context", "c", "--cluster", "c", "--user", name, "--namespace", blue)
	config("use-context", "c")
	return a
}

// run runs kubectl vm, which must exit with a code and print a text.
func (a *account) run(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	stdout, stderr, err := framework.RunCommand(t, framework.CommandTimeout, []string{"KUBECONFIG=" + a.kubeconfig}, a.program, args...)
	got := 0
	if err != nil {
		got = -1
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // as Run returns it
			got = exit.ExitCode()
		}
	}
	assert.True(t, got == code && strings.Contains(stdout+stderr, text),
		"kubectl vm %s ended with %d, not with %d and %q: %s%s", strings.Join(args, " "), got, code, text, stdout, stderr)
}

// checkReplicasServe reads a log through each node. The Service routes a connection to the replica
// on the same node, so that the replica sees the address of the client.
func checkReplicasServe(t *testing.T, d *Deployment, a *account) {
	t.Helper()
	path := streams.Path(blue, "web", streams.Log)
	for _, node := range d.Cluster.Nodes() {
		text := getWithToken(t, "https://"+net.JoinHostPort(node.IP, streamsPort)+path, a.token)
		assert.Contains(t, "the log by node "+node.Name, text, "the demo guest is up")
	}
	assert.Eventually(t, "each replica has served a stream", func(t testing.TB) error {
		pods, err := d.pods(t.Context())
		for _, pod := range pods {
			log, err := d.Cluster.PodLog(t.Context(), namespace, pod.Name)
			if err != nil {
				return err
			}
			if !strings.Contains(log, "Stream ended") {
				return fmt.Errorf("pod %s on node %s has not served a stream", pod.Name, pod.Spec.NodeName)
			}
		}
		return err
	})
}
