// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// validity is the validity of certificates, longer than any cluster runs.
const validity = 365 * 24 * time.Hour

// authority signs certificates and writes them into a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority writes NAME.crt and NAME.key of a new certificate authority.
func newAuthority(dir, name string) (a *authority, err error) {
	a = &authority{dir: dir}
	if a.key, err = newKey(filepath.Join(dir, name+".key")); err != nil {
		return nil, err
	}
	if a.cert, err = certutil.NewSelfSignedCACert(certutil.Config{CommonName: "drover-cluster-" + name}, a.key); err != nil {
		return nil, err
	}
	return a, a.writeCertificate(name, a.cert.Raw)
}

// newKey writes a new key to a file.
func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err == nil {
		err = keyutil.WriteKey(path, text)
	}
	return key, err
}

func (a *authority) writeCertificate(name string, der []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
	return certutil.WriteCert(filepath.Join(a.dir, name+".crt"), text)
}

// issue writes FILE.crt and FILE.key for a user, or a server with names and addresses.
func (a *authority) issue(file, user string, groups []string, hosts ...string) error {
	key, err := newKey(filepath.Join(a.dir, file+".key"))
	if err != nil {
		return err
	}
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return a.writeCertificate(file, der)
}

// writeKubeconfig writes a kubeconfig with the certificate that was issued as FILE.
func (a *authority) writeKubeconfig(p plan.Plan, path, file string) error {
	config := clientcmdapi.NewConfig()
	ca, err := os.ReadFile(filepath.Join(a.dir, "ca.crt"))
	cert, certErr := os.ReadFile(filepath.Join(a.dir, file+".crt"))
	key, keyErr := os.ReadFile(filepath.Join(a.dir, file+".key"))
	if err := errors.Join(err, certErr, keyErr); err != nil {
		return err
	}
	config.Clusters[p.Name] = &clientcmdapi.Cluster{Server: p.Server(), CertificateAuthorityData: ca}
	config.AuthInfos[file] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[p.Name] = &clientcmdapi.Context{Cluster: p.Name, AuthInfo: file}
	config.CurrentContext = p.Name
	return clientcmd.WriteToFile(*config, path)
}

// writeCredentials writes all keys, certificates and kubeconfigs of a cluster.
func writeCredentials(p plan.Plan) error {
	dir := p.Path("pki")
	ca, err := newAuthority(dir, "ca")
	if err != nil {
		return err
	}
	frontProxy, err := newAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	_, keyErr := newKey(filepath.Join(dir, "sa.key"))
	err = errors.Join(
		keyErr,
		frontProxy.issue("front-proxy-client", "front-proxy-client", nil),
		ca.issue("kube-apiserver", "kube-apiserver", nil, p.ControlPlaneIP(), plan.KubernetesIP, "127.0.0.1", "localhost",
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
		ca.writeUser(p, p.Kubeconfig(), "admin", "kubernetes-admin", "system:masters"),
		ca.writeUser(p, p.Path("pki", "kube-controller-manager.kubeconfig"), "kube-controller-manager", "system:kube-controller-manager"),
		ca.writeUser(p, p.Path("pki", "kube-scheduler.kubeconfig"), "kube-scheduler", "system:kube-scheduler"),
	)
	for i := 1; i <= p.Nodes && err == nil; i++ {
		name := plan.NodeName(i)
		err = errors.Join(
			ca.issue("kubelet-"+name, name, nil, name, p.NodeIP(i)),
			ca.writeUser(p, p.NodePath(i, "kubelet.kubeconfig"), "node-"+name, "system:node:"+name, "system:nodes"),
			ca.writeUser(p, p.NodePath(i, "kube-proxy.kubeconfig"), "kube-proxy-"+name, "system:kube-proxy"),
		)
	}
	return err
}

func (a *authority) writeUser(p plan.Plan, kubeconfig, file, user string, groups ...string) error {
	if err := a.issue(file, user, groups); err != nil {
		return err
	}
	return a.writeKubeconfig(p, kubeconfig, file)
}
