// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
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

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// validity of certificates: no cluster lives so long.
const validity = 365 * 24 * time.Hour

// authority signs certificates and writes them into a folder.
type authority struct {
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority writes NAME.crt and NAME.key of a new certificate authority.
func newAuthority(dir, name string) (*authority, error) {
	template := newTemplate("drover-cluster-"+name, nil)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	a := &authority{dir: dir, name: name, cert: template}
	key, err := a.sign(name, template)
	if err != nil {
		return nil, err
	}
	a.key = key
	return a, nil
}

func newTemplate(user string, groups []string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue writes FILE.crt and FILE.key for a user, or a server with names and addresses.
func (a *authority) issue(file, user string, groups []string, hosts ...string) error {
	template := newTemplate(user, groups)
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, err := a.sign(file, template)
	return err
}

func (a *authority) sign(file string, template *x509.Certificate) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signer := a.key
	if signer == nil {
		signer = key // an authority signs its own
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	if file == a.name { // its key identifier must be in what it signs
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(a.dir, file)
	return key, errors.Join(writePEM(path+".crt", "CERTIFICATE", der), writeKey(path+".key", key))
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	return errors.Join(err, writePEM(path, "EC PRIVATE KEY", der))
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeServiceAccountKeys writes the keys that sign and check tokens: sa.key, sa.pub.
func writeServiceAccountKeys(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	return errors.Join(err, writeKey(filepath.Join(dir, "sa.key"), key), writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public))
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
	err = errors.Join(
		writeServiceAccountKeys(dir),
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
