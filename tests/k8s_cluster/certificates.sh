#!/usr/bin/env bash
# Makes the node's certificates: one authority, one for the servers, one for each client, and the key that signs the
# tokens of service accounts. Usage: certificates.sh FOLDER NODE_ADDRESS API_ADDRESS
set -euo pipefail
mkdir -p "$1"
cd "$1"
address=$2
api=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

certificate() { # name, subject, alternative names, usage
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" 2>/dev/null |
        openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" -extfile \
            <(printf 'subjectAltName=%s\nextendedKeyUsage=%s\nkeyUsage=digitalSignature\n' "$3" "$4") 2>/dev/null
}

client() { # name, subject
    certificate "$1" "$2" DNS:client clientAuth
    cat >"$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://$address:6443", certificate-authority: $PWD/ca.crt}}]
users: [{name: client, user: {client-certificate: $PWD/$1.crt, client-key: $PWD/$1.key}}]
contexts: [{name: node, context: {cluster: node, user: client}}]
current-context: node
K
}

key ca
openssl req -x509 -new -key ca.key -subj /CN=ca -days 30 -out ca.crt 2>/dev/null
certificate server /CN=node "DNS:node,DNS:localhost,$api,IP:127.0.0.1,IP:$address,IP:$3" serverAuth
client admin /O=system:masters/CN=admin
client apiserver /O=system:masters/CN=apiserver
client kube-controller-manager /CN=system:kube-controller-manager
client kube-scheduler /CN=system:kube-scheduler
client kube-proxy /CN=system:kube-proxy
client kubelet /O=system:nodes/CN=system:node:node
client front-proxy /CN=front-proxy
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
