// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// TestStaticPod runs Drover as docs/cluster-docker.md describes for one host: with its commands, and its
// manifest with other paths, since the kubelet shares this host.
func TestStaticPod(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; TestInstallations of test/manifests admits the pod")
	t.Parallel()
	d := New(t)
	node := d.Cluster.Node(1)
	d.kubectl(t, "apply", "-k", filepath.Join(d.root, "config", "static-pod"))
	kubeconfig := filepath.Join(node.Dir, "drover-controller.kubeconfig")
	d.writeStaticKubeconfig(t, kubeconfig)

	manifest, err := os.ReadFile(filepath.Join(d.root, "config", "static-pod", "drover-controller.yaml"))
	assert.NoError(t, err)
	const kubeconfigPath, socketPath = "path: /etc/kubernetes/drover-controller.kubeconfig", "path: /var/run/docker.sock"
	for _, path := range []string{kubeconfigPath, socketPath} {
		assert.Require(t, strings.Count(string(manifest), "      "+path+"\n") == 1, "the manifest lacks a hostPath with %s", path)
	}
	content := strings.NewReplacer("      "+kubeconfigPath+"\n", "      path: "+kubeconfig+"\n", "      "+socketPath+"\n", "      path: "+d.Engine.Socket+"\n").Replace(string(manifest))
	file := filepath.Join(node.Dir, "manifests", "drover-controller.yaml")
	writeFile(t, file, []byte(content))

	assert.Eventually(t, "the static pod is ready", func(t testing.TB) error {
		d.kubectl(t, "-n", "kube-system", "wait", "--for=condition=Ready", "pod/drover-controller-"+node.Name, "--timeout=1s")
		return nil
	})
	d.checkManaged(t)
	g := d.createGuests(t)

	assert.NoError(t, os.Remove(file))
	assert.Eventually(t, "the static pod is gone", func(t testing.TB) error {
		d.kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod/drover-controller-"+node.Name, "--timeout=1s")
		return nil
	})
	g.requestWithoutDrover(t, "the removal of the static pod")
	writeFile(t, file, []byte(content))
	g.checkReinstalled(t)
}

// writeStaticKubeconfig runs the commands of the docs.
func (d *Deployment) writeStaticKubeconfig(t *testing.T, file string) {
	t.Helper()
	config := func(args ...string) string { return d.kubectl(t, append([]string{"config"}, args...)...) }
	decode := func(text string) []byte {
		content, err := base64.StdEncoding.DecodeString(text)
		assert.NoError(t, err)
		return content
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	writeFile(t, ca, decode(config("view", "--raw", "--minify", "--flatten", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")))
	config("--kubeconfig", file, "set-cluster", "c", "--embed-certs", "--certificate-authority", ca,
		"--server", config("view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"))
	token := d.kubectl(t, "-n", namespace, "get", "secret", "drover-controller-token", "-o", "jsonpath={.data.token}")
	config("--kubeconfig", file, "set-credentials", "drover-controller", "--token", string(decode(token)))
	config("--kubeconfig", file, "set-context", "c", "--cluster", "c", "--user", "drover-controller")
	config("--kubeconfig", file, "use-context", "c")
	assert.NoError(t, os.Chmod(file, 0o600))
}
